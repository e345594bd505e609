"""Candidates of one shape through binding, quick gates and the model: plain data in, plain data out.

Runs in the server for a few candidates and in CPU workers for many (`server.ranking`). A text is parsed once. The gates are the static
rules and the order reading on two witness shapes, which one candidate of a kernel lends to those after it that admit them: a search
for shapes of their own would be most of the time. What more shapes, checks of outputs and data would find is not looked
for: `verify` stays the gate before a compile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cake_ir.collector import seldom_collected
from cake_ir.diagnostics import CakeError
from server.errors import EngineError
from server.limits import computation_limit
from server.results import clean, plain

if TYPE_CHECKING:
    from cake_ir.bound import BoundKernel
    from cake_ir.syntax import File
    from cake_ir.witness import Witness

EACH_S = 10.0
"""Processor seconds that one candidate may take; milliseconds are usual."""


class Gates:
    """What candidates of the same texts share: parsed files, and witness shapes by kernel."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts
        self._files: dict[int, File] = {}
        self._shapes: dict[tuple[int, str], tuple[Witness, ...]] = {}

    def bind(self, item: Mapping[str, Any]) -> BoundKernel:
        """The kernel that an item of `assess` names. Raises CakeError: the first finding of a text that does not parse or bind."""
        from cake_ir import bind, parse

        number = int(item["text"])
        if number not in self._files:
            parsed = parse(self._texts[number])
            if parsed.file is None:
                raise CakeError(parsed.diagnostics[0])
            self._files[number] = parsed.file
        done = bind(self._files[number], item["bindings"], item["target"], item["kernel"])
        if done.bound is None:
            raise CakeError(next(d for d in done.diagnostics if d.severity == "error"))
        return done.bound

    def admit(self, item: Mapping[str, Any], bound: BoundKernel) -> None:
        """Raises CakeError: the first finding of the gates."""
        from analyses.cost.sensitivity import FEW, lend
        from analyses.verifier import verify
        from cake_ir.witness import witnesses

        key = (item["text"], bound.name)
        pool = self._shapes.get(key, ())
        if not lend(bound, pool):
            own = witnesses(bound).witnesses[:FEW]
            self._shapes[key] = (*pool, *own)
            lend(bound, own)
        faults = verify(bound, None, brief=True, deep=False).diagnostics
        if faults:
            raise CakeError(faults[0])


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
    from analyses.cost import estimate
    from corpus.signature import match

    gates = Gates(job["texts"])
    specs = [contracts[name] for name in job["contracts"] if name in contracts]
    out: list[dict[str, Any]] = []
    for done, item in enumerate(job["items"]):
        each(done)
        try:
            with computation_limit("assessing", EACH_S):
                bound = gates.bind(item)
                gates.admit(item, bound)
                found = estimate(bound, dict(job["shape"]), job["device"], l2=job["l2"], explain=False)
                out.append({"estimate": plain(found), "contracts": [s.name for s in specs if match(bound, s)]})
        except CakeError as exc:
            d = exc.diagnostic
            out.append({"rule": d.rule, "message": clean(d.message, 300), "line": d.span.line})
        except EngineError as exc:
            out.append({"rule": exc.code, "message": exc.message, "line": 0})
    return out
