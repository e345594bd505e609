"""Candidates of one shape through binding, the static gates and the model: plain data in, plain data out.

Runs in the server for a few candidates and in CPU workers for many (`server.ranking`). A text is parsed once. What the
order reading and the checks of data would find is not looked for: `verify` stays the gate before a compile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cake_ir.collector import seldom_collected
from cake_ir.diagnostics import CakeError, Diagnostic
from server.errors import EngineError
from server.limits import computation_limit
from server.results import clean, plain

EACH_S = 10.0
"""Processor seconds that one candidate may take; milliseconds are usual."""


@seldom_collected
def assess(
    job: Mapping[str, Any], contracts: Mapping[str, Any], each: Callable[[int], None] = lambda done: None
) -> list[dict[str, Any]]:
    """Outcomes of `job["items"]`, in order.

    job: `texts`; `items` ({"text": number, "bindings", "target", "kernel"}); `shape`; `device` (CUDA name or None); `l2`;
    `contracts` (names of those whose kernels are a family). contracts: all there are, by name. An outcome is {"estimate":
    fields of `Estimate` without path and limiters, "contracts": those whose signature the kernel has} or {"rule", "message",
    "line"}. each: called with the number of candidates done.
    """
    files: dict[int, Any] = {}
    specs = [contracts[name] for name in job["contracts"] if name in contracts]
    out = []
    for done, item in enumerate(job["items"]):
        each(done)
        try:
            with computation_limit("assessing", EACH_S):
                out.append(_assess(job, item, files, specs))
        except CakeError as exc:
            out.append(_fault(exc.diagnostic))
        except EngineError as exc:
            out.append({"rule": exc.code, "message": exc.message, "line": 0})
    return out


def _assess(
    job: Mapping[str, Any], item: Mapping[str, Any], files: dict[int, Any], specs: Sequence[Any]
) -> dict[str, Any]:
    from analyses.cost import estimate
    from analyses.verifier import static_faults
    from cake_ir import bind, parse
    from corpus.signature import match

    number = item["text"]
    if number not in files:
        files[number] = parse(job["texts"][number])
    parsed = files[number]
    if parsed.file is None:
        return _fault(parsed.diagnostics[0])
    done = bind(parsed.file, item["bindings"], item["target"], item["kernel"])
    if done.bound is None:
        return _fault(next(d for d in done.diagnostics if d.severity == "error"))
    faults = static_faults(done.bound)
    if faults:
        return _fault(faults[0])
    found = estimate(done.bound, dict(job["shape"]), job["device"], l2=job["l2"], explain=False)
    return {"estimate": plain(found), "contracts": [s.name for s in specs if match(done.bound, s)]}


def _fault(found: Diagnostic) -> dict[str, Any]:
    return {"rule": found.rule, "message": clean(found.message, 300), "line": found.span.line}
