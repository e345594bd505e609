"""`cake demo`: the whole loop on k-means assignment, through a real MCP client talking to `cake serve`.

Everything shown comes out of tool answers. A fault is planted first: the producer no longer waits for a stage to be
free before it loads into it.
"""

from __future__ import annotations

import os
import re
import secrets
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import anyio
from rich.markup import escape
from rich.panel import Panel

from server.results import DiagnosticOut, clean
from server.terminal import console, print_diagnostic

KERNEL = "kmeans_assign"
FAULT = re.compile(r"^ *wait\(free\[.*\]\)\n", re.MULTILINE)
BIG = {"B": 32, "N": 65536, "C": 1024, "D": 128}
SMALL = [{"B": 1, "N": 130, "C": 200, "D": 64}, {"B": 2, "N": 64, "C": 7, "D": 128}]


class DemoFailed(Exception):
    """A step did not answer as it must; the text says which."""


@dataclass
class Show:
    """Numbers the steps, prints them and what each tool answered."""

    number: int = 0
    started: float = field(default_factory=time.monotonic)

    def step(self, title: str) -> None:
        self.number += 1
        out = console()
        out.print()
        out.print(f"[bold cyan]{self.number}. {escape(title)}[/]  [dim]{time.monotonic() - self.started:.1f} s[/dim]")

    def answer(self, tool: str, got: dict[str, Any], ms: float) -> None:
        colour = {"accepted": "green", "passed": "green", "ok": "green", "unavailable": "yellow"}.get(
            got["status"], "red"
        )
        console().print(
            f"   [bold]{tool}[/bold] [dim]{ms:.0f} ms[/dim] -> [{colour}]{got['status']}[/]: {escape(got['summary'])}"
        )

    def note(self, text: str) -> None:
        console().print(f"   [dim]{escape(text)}[/dim]")


class Loop:
    """The steps, over one connected client."""

    def __init__(self, client: Any, show: Show) -> None:
        self._client = client
        self._show = show

    async def call(self, tool: str, expect: tuple[str, ...], **arguments: Any) -> dict[str, Any]:
        begin = time.monotonic()
        reply = await self._client.call_tool(tool, arguments, progress_callback=self._progress)
        got = reply.structured_content
        self._show.answer(tool, got, (time.monotonic() - begin) * 1e3)
        if got["status"] not in expect:
            raise DemoFailed(
                f"{tool} answered {got['status']}, expected {' or '.join(expect)}\n{reply.content[0].text}"
            )
        return got

    async def _progress(self, progress: float, total: float | None, message: str | None) -> None:
        if sys.stdout.isatty() and message:
            console().print(f"   [dim]... {escape(message)}[/dim]")

    async def run(self) -> None:
        tools = await self._client.list_tools()
        self._show.note(f"tools: {', '.join(t.name for t in tools.tools)}")
        page = await self._client.read_resource(f"cake://corpus/{KERNEL}")
        text = page.contents[0].text
        fault = FAULT.search(text)
        if fault is None:
            raise DemoFailed("the corpus kernel no longer has a wait(free[...]) in its producer")
        broken = text[: fault.start()] + text[fault.end() :]
        after = text[fault.end() :].split("\n")[0]
        edit = {"old": after, "new": fault.group() + after}
        rejected, base = await self.planted(broken)
        accepted = await self.repair(rejected, base, edit)
        await self.measure(accepted)
        await self.failure(base)

    async def planted(self, broken: str) -> tuple[dict[str, Any], str]:
        self._show.step(f"Propose {KERNEL} with a planted fault: the producer does not wait for a free stage")
        proposed = await self.call("propose_ir", ("ok",), text=broken)
        self._show.step("Verify: rejected before anything is compiled, at the line that is wrong")
        rejected = await self.call("verify", ("rejected",), ir_id=proposed["ids"]["ir_id"], detail="detailed")
        for found in rejected["diagnostics"]:
            print_diagnostic(console(), DiagnosticOut.model_validate(found), broken.split("\n"), f"{KERNEL}.cake")
        return rejected, proposed["ids"]["ir_id"]

    async def repair(self, rejected: dict[str, Any], base: str, edit: dict[str, str]) -> str:
        fixes = [f for d in rejected["diagnostics"] for f in d.get("fixes", []) if f["verified"]]
        if fixes:
            self._show.step(f"Repair by edits of {base[:11]}..., using the verified fix that the answer offered")
            edits = fixes[0]["edits"]
        else:
            self._show.step(f"Repair by edits of {base[:11]}...: only the change travels, never the text")
            edits = [edit]
        fixed = await self.call("propose_ir", ("ok",), base_id=base, edits=edits)
        ir_id = fixed["ids"]["ir_id"]
        accepted = await self.call("verify", ("accepted",), ir_id=ir_id)
        for verdict, names in accepted.get("data", {}).get("properties", {}).items():
            self._show.note(f"{verdict}: {', '.join(names)}")
        for item in accepted.get("artifacts", []):
            self._show.note(f"generated: {item['kind']} ({item['lines']} lines) {item['uri']}")
        return ir_id

    async def measure(self, ir_id: str) -> None:
        self._show.step("Estimate the cost at B32 N65536 K1024 D128 (a model, not a measurement)")
        await self.call("estimate_cost", ("ok",), ir_id=ir_id, shape=BIG)
        self._show.step("Order other bindings of it by the model, before any of them is built")
        ordered = await self.call(
            "estimate_cost", ("ok",), ir_id=ir_id, shape=BIG, vary={"BC": [64, 128], "STAGES": [3, 4]}, l2="warm"
        )
        for row in ordered["data"]["ranking"]:
            self._show.note(f"{row['place']}. {row['name']}: {row['time_us']} us, bound by {row['bound']}")
        self._show.step("Compile with NVRTC and check the numbers against the contract's float64 oracle")
        built = await self.call(
            "compile_and_bench", ("passed",), ir_id=ir_id, contract=KERNEL, shapes=SMALL, until="check", wait_s=300
        )
        build_id = built["ids"]["build_id"]
        sass = await self.call("read_artifact", ("ok",), uri=f"cake://artifact/{build_id}/sass", grep="HGMMA", limit=2)
        for line in sass["data"]["lines"]:
            self._show.note(line)
        self._show.step("Time it beside the baselines, and profile it")
        timed = await self.call(
            "compile_and_bench", ("passed",), ir_id=ir_id, contract=KERNEL, shapes=[*SMALL, BIG], wait_s=600
        )
        for row in timed.get("data", {}).get("bench", {}).get("shapes", []):
            self._show.note(
                f"{row['mode']}: {row.get('time_us')} us, {row.get('baseline')}: {row.get('baseline_us')} us, {row['verdict']}"
            )
        await self.call("profile", ("passed", "unavailable"), ir_id=ir_id, contract=KERNEL, shape=BIG, wait_s=600)

    async def failure(self, base: str) -> None:
        self._show.step(
            "Report a failure: the owner is found from the verifier's own verdict; the same report counts up"
        )
        for _ in range(2):
            await self.call(
                "report_failure", ("ok",), symptom="wrong_result", ir_id=base, observed="labels change from run to run"
            )


async def _connect(stack: AsyncExitStack, workspace: Path, no_gpu: bool, over_http: bool, log: TextIO) -> Any:
    """A client of a fresh server, whose stderr goes to `log`: it is shown only when the demo fails."""
    from mcp import Client, StdioServerParameters
    from mcp.client.stdio import stdio_client

    flags = ["--workspace", str(workspace), *(["--no-gpu"] if no_gpu else [])]
    argv = ["-m", "server.cli", "serve", *flags]
    env = {"PYTHONPATH": str(Path(__file__).resolve().parent.parent)}
    if not over_http:
        return await stack.enter_async_context(
            Client(stdio_client(StdioServerParameters(command=sys.executable, args=argv, env=env), errlog=log))
        )
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    token_file = workspace / "token"
    workspace.mkdir(mode=0o700, exist_ok=True)
    token_file.touch(0o600)
    token = secrets.token_urlsafe(32)
    token_file.write_text(token)
    command = [sys.executable, *argv, "--http", "0", "--token-file", str(token_file)]
    process = await stack.enter_async_context(
        await anyio.open_process(command, env={**os.environ, **env}, stdin=None, stdout=None)
    )
    stack.callback(process.terminate)
    assert process.stderr is not None
    first = ""
    async for chunk in process.stderr:
        first += chunk.decode(errors="replace")
        log.write(chunk.decode(errors="replace"))
        if "/mcp\n" in first:
            break
    else:
        raise DemoFailed("the server ended before it named its address")
    url = first.split()[-1]
    http = httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=600)
    return await stack.enter_async_context(Client(streamable_http_client(url, http_client=http)))


def run_demo(*, no_gpu: bool, over_http: bool = False) -> int:
    """Run the demo in a fresh workspace. Returns the exit code: 0 when every step answered as it must."""
    out = console()
    show = Show()
    wire = "streamable HTTP" if over_http else "stdio"
    out.print(Panel.fit(f"Cake demo: from text to a checked kernel, through an MCP client over {wire}", style="bold"))

    failed: list[str] = []

    async def main(log: TextIO) -> None:
        async with AsyncExitStack() as stack:
            workspace = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cake-demo-"))) / "workspace"
            client = await _connect(stack, workspace, no_gpu, over_http, log)
            show.note(
                f"server started by {Path(sys.executable).name} -m server.cli serve, protocol {client.protocol_version}"
            )
            try:
                await Loop(client, show).run()
            except DemoFailed as exc:  # caught here, before task groups wrap it
                failed.append(str(exc))

    with (
        tempfile.TemporaryDirectory(prefix="cake-demo-") as folder,
        (Path(folder) / "stderr").open("w+", encoding="utf-8", errors="replace") as log,
    ):
        try:
            anyio.run(main, log)
        except Exception as exc:
            failed.append(f"the connection to the server broke ({_innermost(exc)})")
        log.seek(0)
        said = [line for line in log.read().splitlines() if line.strip()]
    if failed:
        out.print(f"[bold red]the demo failed:[/] {escape(failed[0])}")
        if said:
            out.print("   [dim]last words of the server:[/dim]")
            for line in said[-3:]:
                out.print(f"   [dim]  {escape(clean(line, 300))}[/dim]")
        return 1
    out.print(f"\n[bold green]done[/] in {time.monotonic() - show.started:.1f} s")
    return 0


def _innermost(exc: BaseException) -> str:
    """The first cause inside the groups that task groups raise."""
    while isinstance(exc, BaseExceptionGroup):
        exc = exc.exceptions[0]
    return f"{type(exc).__name__}: {clean(str(exc), 200)}" if str(exc) else type(exc).__name__
