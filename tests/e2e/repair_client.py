"""A client without a model that repairs programs by reading tool answers.

It knows the tools and the envelope, nothing about kernels or rules: it proposes a text, verifies it, applies an offered fix
by its edits, and goes on until the program is accepted and passes its contract on the CPU, or until its tries are spent. A
fix that leads nowhere is taken back and the next offered one is tried. Only `structuredContent` is read.

    python -m tests.e2e.repair_client FILE --contract NAME     repair one file and print the steps
    python -m tests.e2e.repair_client [--only PART]            the planted faults as a table; --docs updates docs/repair.md
    python -m tests.e2e.repair_client --sweep                  every synchronisation line of the corpus, left out in turn
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from mcp import Client, StdioServerParameters

Answer = dict[str, Any]
Caller = Callable[[str, Mapping[str, Any]], Awaitable[Answer]]
Shapes = str | Sequence[Mapping[str, int]]

ROOT = Path(__file__).resolve().parents[2]
MAX_TRIES = 6
CHECK_WAIT_S = 300


@dataclass(frozen=True)
class Step:
    """One tool call: what it answered, and the bytes of the answer as compact JSON."""

    tool: str
    status: str
    summary: str
    bytes: int


@dataclass(frozen=True)
class Outcome:
    """What became of a program.

    `rule` and `line` are those of the first error in the first answer that had one (else "" and 0). `tries` counts the
    fixes that were sent; `titles` names those that led to the repaired program, and `text` is that program.
    """

    repaired: bool
    tries: int
    rule: str
    line: int
    steps: tuple[Step, ...]
    titles: tuple[str, ...] = ()
    text: str = ""

    @property
    def repair_bytes(self) -> int:
        """Bytes of the answers that finding and making the repair took: all but those of the check."""
        return sum(s.bytes for s in self.steps if s.tool != "compile_and_bench")

    @property
    def bytes(self) -> int:
        """Bytes of all answers."""
        return sum(s.bytes for s in self.steps)


@dataclass
class RepairClient:
    """Repairs one program.

    Args:
        call: calls a tool and gives its structured content.
        max_tries: most fixes to send.
    """

    call: Caller
    max_tries: int = MAX_TRIES
    _steps: list[Step] = field(default_factory=list)
    _seen: set[str] = field(default_factory=set)
    _tries: int = 0
    _rule: str = ""
    _line: int = 0

    async def repair(self, text: str, contract: str = "", shapes: Shapes = "boundary") -> Outcome:
        """Repair `text` until it is accepted and, where a contract is named, passes it at `shapes` by interpretation."""
        path = await self._from(await self._look(text=text), contract, shapes)
        for edit in (edit for fix in path or () for edit in fix["edits"]):
            text = text.replace(edit["old"], edit["new"], 1)
        titles = tuple(fix["title"] for fix in path or ())
        return Outcome(path is not None, self._tries, self._rule, self._line, tuple(self._steps), titles, text)

    async def _ask(self, tool: str, **arguments: Any) -> Answer:
        answer = await self.call(tool, arguments)
        size = len(json.dumps(answer, separators=(",", ":"), ensure_ascii=False).encode())
        self._steps.append(Step(tool, answer["status"], answer["summary"], size))
        errors = [d for d in answer.get("diagnostics", []) if d["severity"] == "error"]
        if errors and not self._rule:
            self._rule, self._line = errors[0]["rule"], errors[0]["line"]
        return answer

    async def _look(self, **program: Any) -> Answer:
        """Propose a program, and verify it when it is well typed."""
        answer = await self._ask("propose_ir", **program)
        return await self._ask("verify", ir_id=answer["ids"]["ir_id"]) if answer["status"] == "ok" else answer

    async def _from(self, answer: Answer, contract: str, shapes: Shapes) -> list[Answer] | None:
        """The fixes that lead from an answered program to one that passes; None when none do."""
        if answer["status"] == "accepted" and not contract:
            return []
        if answer["status"] == "accepted":
            answer = await self._ask(
                "compile_and_bench",
                ir_id=answer["ids"]["ir_id"],
                contract=contract,
                shapes=shapes,
                until="check",
                wait_s=CHECK_WAIT_S,
            )
            if answer["status"] == "passed":
                return []
        ids = answer.get("ids", {})
        base = ids.get("source_id") or ids.get("ir_id", "")
        if not base or base in self._seen:
            return None
        self._seen.add(base)
        async for fix in self._fixes(answer, base):
            if self._tries >= self.max_tries:
                return None
            self._tries += 1
            rest = await self._from(await self._look(base_id=base, edits=fix["edits"]), contract, shapes)
            if rest is not None:
                return [fix, *rest]
        return None

    async def _fixes(self, answer: Answer, base: str) -> AsyncIterator[Answer]:
        """Offered fixes in the order to try them; when those are used up, what only the detailed answer offers."""
        sent: list[Any] = []
        for fix in offered(answer):
            sent.append(fix["edits"])
            yield fix
        if answer["status"] == "rejected":
            for fix in offered(await self._ask("verify", ir_id=base, detail="detailed")):
                if fix["edits"] not in sent:
                    yield fix


def offered(answer: Answer) -> Iterator[Answer]:
    """The fixes of an answer, verified ones first, otherwise in the order of its findings."""
    fixes = [fix for d in answer.get("diagnostics", []) for fix in d.get("fixes", [])]
    yield from (f for f in fixes if f["verified"])
    yield from (f for f in fixes if not f["verified"])


def caller(client: Client) -> Caller:
    """Tool calls of an MCP client, reduced to their structured content."""

    async def call(tool: str, arguments: Mapping[str, Any]) -> Answer:
        reply = await client.call_tool(tool, dict(arguments))
        if not isinstance(reply.structured_content, dict):
            raise TypeError(f"{tool} answered without structured content")
        return reply.structured_content

    return call


@asynccontextmanager
async def over_stdio(workspace: Path) -> AsyncIterator[Client]:
    """A client of a server started as users start it."""
    argv = ["-m", "server.cli", "serve", "--no-gpu", "--workspace", str(workspace)]
    keep = {k: v for k in ("PATH", "HOME", "OPENBLAS_NUM_THREADS") if (v := os.environ.get(k))}
    server = StdioServerParameters(command=sys.executable, args=argv, env={**keep, "PYTHONPATH": str(ROOT)})
    async with Client(server) as client:
        yield client


async def _one(path: Path, contract: str, shapes: Shapes) -> int:
    with tempfile.TemporaryDirectory(prefix="cake-repair-") as folder:
        async with over_stdio(Path(folder) / "workspace") as client:
            outcome = await RepairClient(caller(client)).repair(path.read_text(encoding="utf-8"), contract, shapes)
    for step in outcome.steps:
        print(f"{step.tool}: {step.status}, {step.bytes} B: {step.summary}")
    for title in outcome.titles:
        print(f"applied: {title}")
    print("repaired" if outcome.repaired else "not repaired", f"in {outcome.tries} tries, {outcome.bytes} B of answers")
    return 0 if outcome.repaired else 1


async def _sweep() -> int:
    from tests.e2e.left_out import sweep

    with tempfile.TemporaryDirectory(prefix="cake-repair-") as folder:
        async with over_stdio(Path(folder) / "workspace") as client:
            print(await sweep(client))
    return 0


async def _table(part: str, docs: bool) -> int:
    # The planted faults are imported here alone: the client above must not know them.
    from tests.e2e.repair_table import plant_and_repair, render, write_docs

    with tempfile.TemporaryDirectory(prefix="cake-repair-") as folder:
        async with over_stdio(Path(folder) / "workspace") as client:
            rows = await plant_and_repair(client, part, show=True)
    print(render(rows))
    if docs:
        write_docs(rows)
    return 0 if all(r.outcome.repaired == (r.fault.seen and r.fault.repairable) for r in rows) else 1


def main() -> int:
    """Exit code 0 when the file was repaired, or every planted fault that a rule can see."""
    parser = argparse.ArgumentParser(description="repair Cake programs from tool answers alone")
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--contract", default="")
    parser.add_argument("--shapes", type=json.loads, help='JSON list such as [{"M": 3, "N": 4}], default: boundary')
    parser.add_argument("--only", default="", help="planted faults whose kernel and name contain this")
    parser.add_argument("--docs", action="store_true", help="update the table in docs/repair.md")
    parser.add_argument(
        "--sweep", action="store_true", help="leave out every synchronisation line of the corpus in turn"
    )
    args = parser.parse_args()
    if args.sweep:
        return anyio.run(_sweep)
    if args.file is None:
        return anyio.run(_table, args.only, args.docs)
    if not args.contract:
        parser.error("a file needs --contract")
    return anyio.run(_one, args.file, args.contract, args.shapes or "boundary")


if __name__ == "__main__":
    raise SystemExit(main())
