#!/usr/bin/env python3
"""A client without a model: it plants one fault in a corpus kernel, reads only what the tools answer, sends the verified
edits back, and reports tries and bytes per repair.

python tools/repair_session.py [--json]
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

MAX_TRIES = 4


@dataclass(frozen=True)
class Fault:
    """One planted fault: `old` -> `new` at its `occurrence`; an empty `new` deletes the line."""

    kind: str
    kernel: str
    old: str
    new: str = ""
    occurrence: int = 0

    def plant(self, text: str) -> str:
        at = -1
        for _ in range(self.occurrence + 1):
            at = text.find(self.old, at + 1)
            if at < 0:
                raise ValueError(f"{self.kernel} has no {self.old!r}")
        if self.new:
            return text[:at] + self.new + text[at + len(self.old) :]
        start, end = text.rfind("\n", 0, at) + 1, text.find("\n", at + len(self.old)) + 1
        return text[:start] + text[end:]


FAULTS: tuple[Fault, ...] = (
    Fault("dropped wait (producer)", "gemm_sm90", "wait(free[n - STAGES])"),
    Fault("dropped wait (consumer)", "gemm_sm90", "wait(full[n])"),
    Fault("dropped arrive", "gemm_sm90", "arrive(free[n - 1].on(1))"),
    Fault("dropped expect", "gemm_sm90", "expect(full[n])"),
    Fault("dropped fence_async", "gemm_sm90", "fence_async()"),
    Fault("dropped sync", "gemm_sm90", "sync(warpgroup)"),
    Fault("wgmma_wait too shallow", "gemm_sm90", "wgmma_wait(1)", "wgmma_wait(2)"),
    Fault("dropped wgmma_commit", "gemm_sm90", "wgmma_commit()"),
    Fault("dropped bulk_wait_read", "gemm_sm90", "bulk_wait_read(1)", "bulk_wait_read(2)"),
    Fault("wrong arrivals= assertion", "gemm_sm90", "arrivals=4", "arrivals=2"),
    Fault("misspelt name", "gemm_sm90", "wait(full[n])", "wait(ful[n])"),
    Fault("misspelt op", "gemm_sm90", "wait(full[n])", "wiat(full[n])"),
    Fault("wrong use number", "gemm_sm90", "wait(free[n - STAGES])", "wait(free[n])"),
    Fault("counter not advanced", "gemm_sm90", "n += 1"),
    Fault("wrong init", "gemm_sm90", "init=k == 0", "init=False"),
    Fault("dropped sync(cluster)", "gemm_sm90", "sync(cluster)"),
    Fault("dropped cp_async_commit", "gemm_sm80", "cp_async_commit()", "", 1),
    Fault("cp_async_wait too shallow", "gemm_sm80", "cp_async_wait(STAGES - 2)", "cp_async_wait(STAGES - 1)"),
    Fault("dropped tmem_load_wait", "gemm_sm100", "tmem_load_wait()"),
    Fault(
        "commit to one CTA only", "gemm_sm100", "tcgen05_commit(free[n], multicast=cluster)", "tcgen05_commit(free[n])"
    ),
    Fault("dropped sync between warps", "softmax", "sync(rows)"),
)


@dataclass(frozen=True)
class Outcome:
    """A repair. tries: propose_ir calls after the first; bytes of arguments sent and of answers read after the fault
    was sent; same: the repaired text is the original."""

    kind: str
    rule: str
    tries: int
    sent: int
    read: int
    accepted: bool
    same: bool


def _size(value: Any) -> int:
    return len(json.dumps(value, separators=(",", ":")).encode())


class Client:
    """The tool calls of one session, with a count of bytes."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.sent = self.read = 0

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        result = await self._client.call_tool(tool, arguments)
        answer = result.structured_content
        if answer is None:
            raise RuntimeError(f"{tool} gave no structured answer")
        self.sent += _size(arguments)
        self.read += _size(answer)
        return answer


async def repair(client: Client, fault: Fault, original: str) -> Outcome:
    """Plants the fault and repairs it from tool answers alone."""
    answer = await client.call("propose_ir", text=fault.plant(original))
    client.sent = client.read = 0
    rule, tries = "", 0
    while True:
        ir_id = answer.get("ids", {}).get("ir_id")
        if answer["status"] != "rejected" and ir_id:
            answer = await client.call("verify", ir_id=ir_id)
        rule = rule or (answer["diagnostics"][0]["rule"] if answer.get("diagnostics") else "")
        if answer["status"] == "accepted" or tries >= MAX_TRIES:
            break
        fixes = [f for d in answer.get("diagnostics", []) for f in d.get("fixes", []) if f["verified"]]
        base = answer.get("ids", {}).get("ir_id") or answer.get("ids", {}).get("source_id")
        if not fixes or not base:
            break
        tries += 1
        answer = await client.call("propose_ir", base_id=base, edits=fixes[0]["edits"])
    accepted = answer["status"] == "accepted"
    sent, read = client.sent, client.read
    return Outcome(fault.kind, rule, tries, sent, read, accepted, accepted and await _same(client, answer, original))


async def _same(client: Client, answer: dict[str, Any], original: str) -> bool:
    """Whether the repaired program is the original (equal content ids)."""
    again = await client.call("propose_ir", text=original)
    return again["ids"]["ir_id"] == answer["ids"]["ir_id"]


async def session(faults: Sequence[Fault] = FAULTS) -> list[Outcome]:
    """Repairs every fault over an in-process MCP client with a workspace of its own."""
    from mcp import Client as McpClient

    from server.engine import Config, Engine
    from server.mcp_server import CakeServer

    with tempfile.TemporaryDirectory() as folder:
        engine = Engine(Config(Path(folder) / "workspace", no_gpu=True))
        cake = CakeServer(engine)
        try:
            async with McpClient(cake.build()) as raw:
                out = []
                for fault in faults:
                    text = (ROOT / "corpus" / "kernels" / f"{fault.kernel}.cake").read_text(encoding="utf-8")
                    out.append(await repair(Client(raw), fault, text))
                return out
        finally:
            cake.close()
            engine.close()


def main(argv: list[str]) -> int:
    outcomes = asyncio.run(session())
    if argv == ["--json"]:
        print(json.dumps([asdict(o) for o in outcomes], indent=1))
    else:
        print(f"{'fault':<28} {'found as':<34} {'tries':>5} {'sent B':>7} {'read B':>7}  result")
        for o in outcomes:
            result = ("repaired, as it was" if o.same else "repaired, another way") if o.accepted else "not repaired"
            print(f"{o.kind:<28} {o.rule:<34} {o.tries:>5} {o.sent:>7} {o.read:>7}  {result}")
        done = sum(o.accepted for o in outcomes)
        print(f"{done} of {len(outcomes)} repaired")
    return 0 if all(o.accepted for o in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
