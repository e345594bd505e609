"""A second opinion on an accepted kernel: compute-sanitizer's findings as diagnostics on lines of the program.

Rules are named `runtime/<tool>-<kind>`, e.g. `runtime/memcheck-invalid-global-write`; the kinds are in corpus/sanitizer.py.
They are no gates: an accepted kernel should give the tools nothing to say, so a finding is a rule that Cake lacks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cake_ir.diagnostics import NOWHERE, Diagnostic, Family, Related, Span, Subject
from server.errors import BadArgument
from server.gpu_work import device_name
from server.programs import Program, Unit
from server.results import Detail, Result, add_diagnostics, clean
from server.shapes import Shapes, shape_list
from server.worker import Control

if TYPE_CHECKING:
    from corpus.sanitizer import Finding, Site, Tool
    from server.evaluate import Evaluator

LAW = "compute-sanitizer has nothing to report about a kernel that was accepted."
_FAMILY: Mapping[Tool, Family] = {"memcheck": "safety", "racecheck": "data", "synccheck": "safety", "initcheck": "data"}


def tools_of(names: Sequence[str]) -> tuple[Tool, ...]:
    """Tools by name, in their fixed order; `all` means every one. Raises BadArgument."""
    if not names:
        return ()
    from corpus.sanitizer import TOOLS

    unknown = [n for n in names if n not in (*TOOLS, "all")]
    if unknown:
        raise BadArgument(f"sanitize: no tool {clean(unknown[0], 40)!r}; tools are {', '.join(TOOLS)}, or all")
    return tuple(t for t in TOOLS if t in names or "all" in names)


def watched_shapes(spec: Any, shapes: Shapes | None) -> list[dict[str, int]]:
    """The shapes of which the first that the kernel admits is watched: the given ones, else the boundary set, largest
    first. The tools slow a kernel by orders, so a named set of large shapes is not used."""
    if shapes and not isinstance(shapes, str):
        return shape_list(spec, shapes)
    return sorted(shape_list(spec, "boundary"), key=lambda s: -spec.bytes(s))


def ask(
    evaluator: Evaluator, program: Program, unit: Unit, spec: Any, shapes: Shapes | None, tools: Sequence[Tool],
    fresh: bool, control: Control, detail: Detail,
) -> Result:  # fmt: skip
    """Run the tools (see corpus/gpu_sanitize.py) and say what they found. `unavailable` when one could not run and none
    found anything."""
    from corpus.sanitizer import Finding

    what = {"shapes": watched_shapes(spec, shapes), "tools": list(tools)}
    known = None if fresh else evaluator.stored(unit, spec, "sanitize", what)
    if known is None:
        known = evaluator.run_gpu(program, unit, spec, "sanitize", what["shapes"], control, sanitize=list(tools))
        if all(run["verdict"] != "unavailable" for run in known["runs"]):
            verdict = "passed" if known["passed"] else "failed"
            evaluator.keep(unit, spec, "sanitize", what, device_name(known), verdict, known)
    runs = known["runs"]
    found = [diagnostic(Finding.model_validate(f), unit) for run in runs for f in run["findings"]]
    bad = [run for run in runs if run["verdict"] in ("findings", "fault", "no-end")]
    absent = [run for run in runs if run["verdict"] == "unavailable"]
    shape = " ".join(f"{k}={v}" for k, v in known["shape"].items())
    words = "; ".join(f"{r['tool']} {_words(r)}" for r in runs)
    result = Result(
        summary=clean(f"{unit.kernel} on {device_name(known)} under compute-sanitizer at {shape}: {words}", 600),
        status="failed" if bad else "unavailable" if absent else "passed",
        ids={**program.ids, "variant_id": unit.variant_id},
    )
    result.data = {
        "version": clean(str(known.get("version", "")), 80),
        "shape": known["shape"],
        "reused": bool(known.get("reused")),
        "tools": {r["tool"]: r["verdict"] for r in runs},
        "not_seen": {r["tool"]: r["limit"] for r in runs if r["verdict"] == "clean"},
    }
    result.artifacts = [evaluator.artifact(unit.variant_id, "sanitize", json.dumps(known, indent=1))]
    add_diagnostics(result, found, program.text, detail)
    if bad:
        result.next = (
            "an accepted kernel with findings is a missing rule: "
            f"report_failure(symptom='crash', ir_id={program.ir_id!r}, observed=...) with the finding"
        )
    return result


def diagnostic(found: Finding, unit: Unit) -> Diagnostic:
    """A finding on its line; the other lines it names are related places."""
    lines = [s for s in found.sites if s.line]
    first = lines[0] if lines else None
    related = tuple(Related(span=_span(s), message=_site_words(s)) for s in lines[1:] if s.line != lines[0].line)
    return Diagnostic(
        rule=f"runtime/{found.tool}-{found.kind}", family=_FAMILY[found.tool], severity=found.severity,
        message=_message(found), contract=LAW, span=_span(first) if first else NOWHERE, related=related,
        subject=Subject(kernel=unit.kernel),
    )  # fmt: skip


def _message(found: Finding) -> str:
    if found.kind == "shared-race" and len(found.sites) > 1:
        places = " and ".join(f"the {s.access or 'access'} on {_place(s)}" for s in found.sites)
        text = f"{places} race on shared memory ({found.count} hazards)"
    else:
        times = f", {found.count} reports" if found.count > 1 else ""
        site = found.sites[0] if found.sites else None
        text = f"{found.message}{f' by {site.function}' if site and site.function else ''}{times}"
    if found.thread is not None and found.block is not None:
        text += f"; first by thread {found.thread[0]} of CTA {found.block[0]}"
    if found.facts:
        text += f": {'; '.join(found.facts)}"
    if not found.line:
        text += " (no line of the program is known for it)"
    return clean(text, 700)


def _place(site: Site) -> str:
    return f"line {site.line}" if site.line else f"instruction {site.offset:#x}"


def _site_words(site: Site) -> str:
    return f"the {site.access or 'other access'}{f' ({site.function})' if site.function else ''}"


def _span(site: Site) -> Span:
    return Span(line=site.line, col=1, end_line=site.line, end_col=1)


def _words(run: Mapping[str, Any]) -> str:
    if run["verdict"] == "findings":
        errors = sum(f["severity"] == "error" for f in run["findings"])
        return f"{errors} finding{'s' * (errors != 1)} in {run['errors'] or errors} reports"
    return run["verdict"] + (f" ({run['message']})" if run["message"] else "")
