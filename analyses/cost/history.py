"""How far earlier predictions lay from what was measured: what an order of predictions is worth in one family of kernels.

A family is a workload of the committed evidence (`corpus/results/cost-ranking.json`, written by `corpus.ranking.figures` from points
that no calibration has seen), or the kernels of one contract that a workspace has timed. Evidence of another device is none.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cake_ir.diagnostics import CakeError, error

FILE = Path(__file__).parents[2] / "corpus" / "results" / "cost-ranking.json"
ALL = "all"
"""The family of a kernel that belongs to no workload: all of them together."""
L2 = Literal["cold", "warm"]


@dataclass(frozen=True)
class Prior:
    """Predicted against measured over the kernels of one family on one device.

    origin: `committed` or `workspace`; source: the file, or how many kernels. Ratios are fractions (0.05 is 5 %). error: |predicted /
    measured - 1|. Of each shape's candidates: Spearman's correlation of the two orders, regret (measured time of the one
    predicted first over the fastest, less 1), top3 (share of shapes whose fastest is among the first three). resolution: predictions at
    least this far apart were in the right order in 90 % of pairs. None: not to be had from so few points."""

    family: str
    device: str
    l2: L2
    origin: Literal["committed", "workspace"]
    source: str
    points: int
    shapes: int
    error_median: float
    error_p90: float
    spearman_median: float | None = None
    regret_median: float | None = None
    regret_worst: float | None = None
    top3: float | None = None
    resolution: float | None = None


@dataclass(frozen=True)
class History:
    """What is known of one family. `note`: why nothing is, or what the evidence does not cover."""

    priors: tuple[Prior, ...] = ()
    note: str = ""

    @property
    def resolution(self) -> float | None:
        """How far two predictions must lie apart to be told apart: the larger where two records differ; None: unknown."""
        return max((p.resolution for p in self.priors if p.resolution is not None), default=None)


@dataclass(frozen=True)
class Committed:
    """The committed evidence. `families`: workload -> (contract, names of its kernels)."""

    device: str
    l2: L2
    source: str
    families: Mapping[str, tuple[str, tuple[str, ...]]]
    priors: Mapping[str, Prior]

    def history(self, family: str, device: str, l2: L2) -> History:
        """What is known of a workload, or of `ALL`, on a device."""
        if device != self.device:
            return History(note=f"no prior error is known on {device}: {self.source} is of {self.device}")
        notes = [] if l2 == self.l2 else [f"figures of launches with a {self.l2} L2; of a {l2} one none are committed"]
        if family not in self.families:
            notes.append(
                f"the kernel belongs to no measured family ({', '.join(self.families)}): figures of all of them"
            )
            family = ALL
        return History((self.priors[family],), "; ".join(notes))


def committed(path: Path = FILE) -> Committed | None:
    """The committed evidence; None when there is none. Raises CakeError `cost/bad-history`."""
    return _read(path, path.stat().st_mtime_ns) if path.is_file() else None


@functools.lru_cache(maxsize=4)
def _read(path: Path, mtime: int) -> Committed:
    try:
        return parse(json.loads(path.read_bytes()), path.name)
    except (ValueError, RecursionError) as exc:
        raise _bad(path.name, f"it is not JSON ({exc})") from None


def parse(obj: object, where: str) -> Committed:
    """Evidence from its JSON (docs/cost-model.md, "Evidence"). Raises CakeError `cost/bad-history` naming the fault."""
    try:
        if not isinstance(obj, dict) or obj["format"] != 1:
            raise ValueError("its format is not 1")
        if obj["l2"] not in ("cold", "warm"):
            raise ValueError(f"l2 is {obj['l2']!r}")
        what: dict[str, Any] = {"device": str(obj["device"]), "l2": obj["l2"], "origin": "committed", "source": where}
        rows = {ALL: obj, **obj["workloads"]}
        return Committed(
            device=what["device"], l2=what["l2"], source=where,
            families={n: (str(w["contract"]), tuple(map(str, w["kernels"]))) for n, w in obj["workloads"].items()},
            priors={n: Prior(family=n, **what, **figures(w)) for n, w in rows.items()},
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, AttributeError) as exc:
        raise _bad(where, f"{type(exc).__name__}: {exc}") from None


def figures(row: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of a `Prior` in a mapping that has more. Raises KeyError, TypeError, ValueError."""
    found: dict[str, Any] = {k: int(row[k]) for k in ("points", "shapes")}
    found |= {k: float(row[k]) for k in ("error_median", "error_p90")}
    for k in ("spearman_median", "regret_median", "regret_worst", "top3", "resolution"):
        found[k] = None if row[k] is None else float(row[k])
    unreal = [k for k, v in found.items() if v is not None and not math.isfinite(v)]
    if unreal:
        raise ValueError(f"{unreal[0]} is {found[unreal[0]]}")
    return found


def _bad(where: str, why: str) -> CakeError:
    return CakeError(
        error("cost/bad-history", "performance", f"{where} is no evidence of predictions: {why}",
              contract="corpus/results/cost-ranking.json is what `python -m corpus.ranking figures` wrote.")
    )  # fmt: skip
