"""A client without a model: it repairs planted faults by sending back what tool answers offer, nothing else.

`python -m tests.server.repairs` prints tries and bytes per repair. A try is one propose_ir with edits; bytes are the JSON
of arguments and structured answers that crossed, first proposal not counted (any client has to send that).
"""

from __future__ import annotations

import json
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
from mcp import Client

KERNELS = Path(__file__).resolve().parents[2] / "corpus/kernels"
MAX_TRIES = 4


@dataclass(frozen=True)
class Fault:
    """One planted fault: in `file`, the line matching `pattern` is replaced (None: deleted)."""

    name: str
    file: str
    pattern: str
    replacement: str | None = None

    def plant(self) -> tuple[str, int]:
        """The faulty text and the 1-based line of the fault. Raises ValueError when the kernel has no such line."""
        text = (KERNELS / self.file).read_text()
        found = re.search(rf"^ *{self.pattern}[^\n]*\n", text, re.MULTILINE)
        if found is None:
            raise ValueError(f"{self.file} has no line {self.pattern}")
        line = text[: found.start()].count("\n") + 1
        new = "" if self.replacement is None else re.sub(self.pattern, self.replacement, found.group(), count=1)
        return text[: found.start()] + new + text[found.end() :], line


FAULTS = (
    Fault("producer does not wait for a free stage", "kmeans_assign.cake", r"wait\(free"),
    Fault("bytes are not expected", "kmeans_assign.cake", r"expect\(full"),
    Fault("consumer does not wait for the data", "kmeans_assign.cake", r"wait\(full"),
    Fault("stage is never released", "kmeans_assign.cake", r"arrive\(free"),
    Fault("product is not waited for", "kmeans_assign.cake", r"wgmma_wait\("),
    Fault("products are not committed", "gemm_sm90.cake", r"wgmma_commit\("),
    Fault("stores are not fenced for the bulk copy", "gemm_sm90.cake", r"fence_async\("),
    Fault("a CTA may leave before its pair is done", "gemm_sm90.cake", r"sync\(cluster"),
    Fault("copies are not waited for", "gemm_sm80.cake", r"cp_async_wait\(STAGES"),
    Fault("warps are not brought together", "gemm_sm80.cake", r"sync\(math"),
)


@dataclass(frozen=True)
class Repair:
    """How one repair went. `rules` are those of the first finding of each answer."""

    fault: Fault
    accepted: bool
    tries: int
    bytes: int
    rules: tuple[str, ...]
    first_line: int


class Meter:
    """Calls tools and counts what crossed."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.bytes = 0

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        reply = await self._client.call_tool(tool, arguments)
        answer = reply.structured_content
        assert isinstance(answer, dict)
        self.bytes += len(json.dumps(arguments)) + len(json.dumps(answer))
        return answer


async def repair(client: Client, fault: Fault) -> Repair:
    """Verify, send back the first verified fix, until accepted or out of tries."""
    meter = Meter(client)
    text, _ = fault.plant()
    base = (await meter.call("propose_ir", text=text))["ids"]["ir_id"]
    meter.bytes = 0
    rules: list[str] = []
    first_line = 0
    for tries in range(MAX_TRIES + 1):
        answer = await meter.call("verify", ir_id=base)
        if answer["status"] == "accepted":
            return Repair(fault, True, tries, meter.bytes, tuple(rules), first_line)
        first = answer["diagnostics"][0]
        rules.append(first["rule"])
        first_line = first_line or first["line"]
        fixes = [f for d in answer["diagnostics"] for f in d.get("fixes", []) if f["verified"]]
        if not fixes:
            break
        base = (await meter.call("propose_ir", base_id=base, edits=fixes[0]["edits"]))["ids"]["ir_id"]
    return Repair(fault, False, len(rules), meter.bytes, tuple(rules), first_line)


async def main() -> None:
    from server.engine import Config, Engine
    from server.mcp_server import CakeServer

    with tempfile.TemporaryDirectory() as home:
        cake = CakeServer(Engine(Config(Path(home) / "workspace", no_gpu=True)))
        async with Client(cake.build()) as client:
            print("| fault | kernel | rule | tries | bytes | accepted |\n| --- | --- | --- | --- | --- | --- |")
            for fault in FAULTS:
                r = await repair(client, fault)
                done = "yes" if r.accepted else "no"
                print(f"| {fault.name} | {fault.file} | {', '.join(r.rules)} | {r.tries} | {r.bytes} | {done} |")


if __name__ == "__main__":
    anyio.run(main)
