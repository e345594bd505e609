"""MCP resources and prompts: documentation, corpus texts and artifacts, read only.

Every page is also reachable with the tool read_artifact, because not every client lets its model read resources.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ResourceNotFoundError
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS

from server.engine import Engine
from server.errors import BadArgument, EngineError, UnknownId

Page = Callable[[str], str]


def _reader(engine: Engine) -> Page:
    """Read one URI; what is not there is a missing resource, not a fault."""

    def page(uri: str) -> str:
        try:
            return engine.artifact_text(uri)
        except (BadArgument, UnknownId) as exc:
            raise ResourceNotFoundError(f"{exc.message}. {exc.next}") from None
        except EngineError as exc:
            raise ResourceError(f"{exc.code}: {exc.message}. {exc.next}") from None

    return page


def _static(page: Page, uri: str) -> Callable[[], str]:
    def read() -> str:
        return page(uri)

    return read


def add_resources(server: MCPServer[Any], engine: Engine) -> None:
    """Index pages as plain resources (clients list them), single pages as templates."""
    page = _reader(engine)
    for kind, what in (
        ("rules", "every rule with family and severity"),
        ("ops", "every op of the language"),
        ("targets", "known GPU targets"),
        ("contracts", "workload contracts"),
        ("corpus", "kernels that ship with Cake"),
    ):
        server.resource(f"cake://{kind}/index", name=f"{kind}-index", description=what, mime_type="text/plain")(
            _static(page, f"cake://{kind}/index")
        )

    @server.resource(
        "cake://rules/{family}/{name}",
        name="rule",
        description="one rule: what, why, rejected and accepted program",
        mime_type="text/markdown",
    )
    def rule(family: str, name: str) -> str:
        return page(f"cake://rules/{family}/{name}")

    @server.resource(
        "cake://ops/{name}",
        name="op",
        description="one op: hardware form, operands, effects",
        mime_type="text/markdown",
    )
    def op(name: str) -> str:
        return page(f"cake://ops/{name}")

    @server.resource(
        "cake://targets/{name}", name="target", description="hardware facts with sources", mime_type="text/markdown"
    )
    def target(name: str) -> str:
        return page(f"cake://targets/{name}")

    @server.resource(
        "cake://contracts/{name}",
        name="contract",
        description="tensors, oracle, tolerances, shapes",
        mime_type="text/markdown",
    )
    def contract(name: str) -> str:
        return page(f"cake://contracts/{name}")

    @server.resource(
        "cake://corpus/{name}", name="corpus-kernel", description="a kernel's .cake text", mime_type="text/plain"
    )
    def corpus_kernel(name: str) -> str:
        return page(f"cake://corpus/{name}")

    @server.resource(
        "cake://artifact/{id}/{kind}",
        name="artifact",
        description="CUDA, PTX, SASS, logs, ledgers of a result",
        mime_type="text/plain",
    )
    def artifact(id: str, kind: str) -> str:
        return page(f"cake://artifact/{id}/{kind}")


def add_prompts(server: MCPServer[Any], engine: Engine) -> None:
    """Starting points for a person; arguments must be known names, so no free text gets into a prompt."""
    catalog = engine.catalog

    @server.prompt(name="optimise_kernel", description="Start improving a corpus kernel for its contract")
    def optimise_kernel(kernel: str) -> str:
        try:
            entry = catalog.corpus_kernel(kernel)
        except EngineError as exc:
            raise MCPError(code=INVALID_PARAMS, message=f"{exc.message}. {exc.next}") from None
        return (
            f"Make the Cake kernel {entry.name} faster under the contract {entry.contract}.\n"
            f"1. Read cake://corpus/{entry.name} and cake://contracts/{entry.contract}.\n"
            "2. propose_ir the text, verify it, and estimate_cost at the tuning shapes; note what bounds it.\n"
            "3. Change one thing at a time: bindings first (estimate_cost with vary orders them), then the schedule by edits. "
            "Verify before compiling.\n"
            "4. compile_and_bench each accepted variant; keep it only if it passes and is measured faster.\n"
            "5. If something accepted crashes, hangs or is mispredicted, report_failure it.\n"
            "State every claim with the id of the evidence; estimates are not measurements."
        )

    @server.prompt(
        name="explain_rule", description="Explain one verifier rule and how to repair a program that breaks it"
    )
    def explain_rule(rule: str) -> str:
        try:
            found = catalog.require_rule(rule)
        except EngineError as exc:
            raise MCPError(code=INVALID_PARAMS, message=f"{exc.message}. {exc.next}") from None
        return f"Explain this rule to the author of a kernel that breaks it, and its repair.\n\n{found.markdown}"
