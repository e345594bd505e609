"""Why a kernel takes the time that the model gives it, and what would change it.

`explain` takes the estimate apart: the bound class, the three dearest terms of the model with what each costs and where in the program
it lies, what the estimate becomes for each neighbour of the program, and advice that was verified. docs/cost-model.md, "Explanation".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from analyses.cost.advice import Advice, advise
from analyses.cost.changes import Value
from analyses.cost.estimate import L2, Estimate, fits
from analyses.cost.limiters import Limiter, bound_class, class_reason, limiters, occupancy_limit, term_costs
from analyses.cost.machine import Machine
from analyses.cost.sensitivity import Neighbour, Subject, sensitivity
from cake_ir.collector import seldom_collected


@dataclass(frozen=True)
class Explanation:
    """estimate: with its path, bound class and limiters. why: the bound class in a sentence. costs: microseconds by term of the model.
    sensitivity: neighbours of the program, the fastest first, rejected ones last. advice: at most three, best first."""

    estimate: Estimate
    bound_class: str
    why: str
    costs: Mapping[str, float]
    limiters: tuple[Limiter, ...]
    sensitivity: tuple[Neighbour, ...]
    advice: tuple[Advice, ...]


@seldom_collected
def explain(
    text: str, shape: Mapping[str, int], *, bindings: Mapping[str, Value] | None = None, target: str | None = None,
    kernel: str | None = None, device: str | None = None, machine: Machine | None = None, l2: L2 = "cold", neighbours: bool = True,
    resolution: float | None = None,
) -> Explanation:  # fmt: skip
    """Explain one kernel of a text at one shape. One or two seconds, most of it for neighbours.

    bindings, target, kernel, device, l2: as for `bind` and `estimate`; machine: rates at hand instead of a device's. neighbours: False
    leaves sensitivity and advice empty. resolution: by what fraction a neighbour must be faster to become advice (a family's
    `History.resolution`; None: `analyses.cost.advice.RESOLUTION`). Raises CakeError for a text that does not parse or bind and as
    `estimate` does.
    """
    subject = Subject.of(text, shape, bindings, target, kernel, machine, device, l2)
    now = subject.estimate(explain=True)
    costs = term_costs(lambda without: subject.estimate(without=without).time_us, now.time_us)
    found = limiters(subject.bound, now, costs, subject.machine, text)
    limit = occupancy_limit(fits(subject.bound))
    name = bound_class(costs, now, limit)
    tried: tuple[Neighbour, ...] = ()
    advice: tuple[Advice, ...] = ()
    if neighbours:
        advice, tried = advise(subject, now, sensitivity(subject, now), costs, resolution)
    told = replace(now, bound_class=name, limiters=tuple(asdict(x) for x in found))
    return Explanation(told, name, class_reason(costs, now, limit), costs, found, tried, advice)


def as_dict(x: Explanation) -> dict[str, Any]:
    """The explanation for JSON, without the estimate and what only text edits need: rounded to three digits, empty fields left out."""
    return {
        "bound_class": x.bound_class,
        "why": x.why,
        "limiters": [_plain(asdict(n)) for n in x.limiters],
        "sensitivity": [_plain({k: v for k, v in asdict(n).items() if k != "edits"}) for n in x.sensitivity],
    }


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    rounded = {k: float(f"{v:.3g}") if isinstance(v, float) else v for k, v in row.items()}
    return {k: v for k, v in rounded.items() if v not in ("", None, {}, ())}
