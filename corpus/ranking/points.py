"""`corpus/results/ranking/SET.json`: what was measured, as it was measured, and what it is worth today.

Read back with strict models. A point whose kernel or contract is another today is no evidence about the model: `stale` says so.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cake_ir.diagnostics import CakeError, error
from corpus import evidence
from corpus.ranking.workloads import Set

DIRECTORY = evidence.DIRECTORY / "ranking"
Us = Annotated[float, Field(gt=0, lt=1e9, allow_inf_nan=False)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Variant(_Model):
    """One compiled candidate: a corpus kernel's name and bindings, ids (`cake_ir.ids`), and the SHA-256 of its machine code."""

    kernel: str
    bindings: dict[str, int | float | bool | str]
    content_id: str
    variant_id: str
    cubins: tuple[str, ...]


class Measured(_Model):
    """A candidate at a shape: samples in microseconds of a launch, in the order of the rounds, of `batch` launches each; the contract's
    verdict. doubt: why its times cannot be."""

    id: str
    check: Literal["passed", "failed", "refused"]
    samples_us: tuple[Us, ...] = ()
    batch: int = 0
    message: str = ""
    doubt: str = ""

    @property
    def us(self) -> float:
        """Median of the samples."""
        return statistics.median(self.samples_us)


class Shaped(_Model):
    """Everything measured at one shape, candidates in the order of drawing; `again` is the second round of samples of `again_of`
    (A/A)."""

    workload: str
    shape: dict[str, int]
    set: str
    again_of: str
    again_us: tuple[Us, ...]
    method: str
    step_us: float
    measured: tuple[Measured, ...]

    @property
    def apart(self) -> float:
        """By how much the two medians of the candidate that was timed twice differ, as a fraction."""
        first = next(m for m in self.measured if m.id == self.again_of)
        return abs(statistics.median(self.again_us) / first.us - 1)


class Campaigned(_Model):
    """Where a workload's points come from. date: of the measurement; prepared, commit, command: of the draw and the compile. settings: of
    `corpus.tuning.campaign`; telemetry: what was read of the device meanwhile. rejected: bindings that a gate stopped, by kernel, then
    gate and rule. lost: candidates that hung or broke the device."""

    contract: str
    contract_digest: str
    dtype: str
    campaign: str
    date: str
    prepared: str
    commit: str
    command: str
    device: dict[str, Any]
    compiler: str
    packages: dict[str, str]
    settings: dict[str, float]
    telemetry: dict[str, Any] = Field(default_factory=dict)
    tried: int
    legal: int
    verified: int
    compiled: int
    rejected: dict[str, dict[str, int]]
    lost: tuple[dict[str, Any], ...] = ()
    skipped: tuple[dict[str, Any], ...] = ()
    variants: dict[str, Variant]


class Points(_Model):
    """The file: what was measured on one device, each workload in a run of its own."""

    kind: Literal["ranking"] = "ranking"
    format: Literal[1] = 1
    set: Set
    l2: Literal["warm"] = "warm"
    seed: int
    target: str
    device: str
    command: str
    workloads: dict[str, Campaigned]
    shapes: tuple[Shaped, ...]

    def each(self, what: Callable[[Campaigned], str]) -> str:
        """Something of the workloads' runs: one value where they agree, else all, in order."""
        return ", ".join(sorted({what(w) for w in self.workloads.values()}))


@dataclass(frozen=True)
class Point:
    """One candidate at one shape, as the statistics take it. draw: its place in the order of drawing."""

    workload: str
    shape: tuple[tuple[str, int], ...]
    id: str
    kernel: str
    bindings: dict[str, Any]
    us: float
    draw: int

    @property
    def key(self) -> tuple[str, tuple[tuple[str, int], ...], str]:
        """What names it among all points."""
        return self.workload, self.shape, self.id


@dataclass(frozen=True)
class Left:
    """A measured candidate that is no evidence, and why."""

    workload: str
    shape: tuple[tuple[str, int], ...]
    id: str
    us: float | None
    why: str


def path(name: str, directory: Path = DIRECTORY) -> Path:
    """The file of a set."""
    return directory / f"{name}.json"


def read(name: str, directory: Path = DIRECTORY) -> Points:
    """The committed points of a set. Raises CakeError `corpus/bad-results`."""
    file = path(name, directory)
    law = "Files under corpus/results/ranking/ are what `python -m corpus.ranking record` writes."
    try:
        return Points.model_validate(json.loads(file.read_text(encoding="utf-8")))
    except OSError as exc:
        text = f"{file.name} cannot be read ({exc.strerror}): prepare, run and record the set {name}"
        raise CakeError(error("corpus/bad-results", "data", text, contract=law)) from exc
    except (ValueError, ValidationError) as exc:
        raise CakeError(error("corpus/bad-results", "data", f"{file.name}: {str(exc)[:300]}", contract=law)) from exc


def write(found: Points, directory: Path = DIRECTORY) -> Path:
    """Write a set's file: JSON with a line for each shape's candidate, so that it is compact and its changes can be read."""
    plain = found.model_dump(mode="json", exclude_defaults=True) | {
        "kind": found.kind,
        "format": found.format,
        "l2": found.l2,
    }
    return evidence.replace_text(path(found.set, directory), lines(plain) + "\n")


def lines(value: Any, depth: int = 4, indent: str = "") -> str:
    """JSON with keys in their order, indented down to `depth` levels, below that on one line."""
    if depth and value and isinstance(value, dict | list):
        more = indent + " "
        if isinstance(value, dict):
            parts = [f"{more}{json.dumps(k)}: {lines(v, depth - 1, more)}" for k, v in value.items()]
            return "{\n" + ",\n".join(parts) + f"\n{indent}}}"
        return "[\n" + ",\n".join(more + lines(v, depth - 1, more) for v in value) + f"\n{indent}]"
    return json.dumps(value, separators=(",", ":"))


def stale(found: Points) -> dict[tuple[str, str], str]:
    """(workload, candidate) -> how its kernel or contract differ from the corpus today."""
    out = {}
    for name, w in found.workloads.items():
        for id_, v in w.variants.items():
            row = {"kernel": v.kernel, "content_id": v.content_id, "contract_digest": w.contract_digest}
            why = evidence.changed(row)
            if why:
                out[name, id_] = why
    return out


def shape_key(shape: dict[str, int]) -> tuple[tuple[str, int], ...]:
    """A shape as a key, in the contract's order."""
    return tuple(shape.items())


def usable(found: Points) -> Iterator[tuple[Shaped, list[Point], list[Left]]]:
    """Per shape its points, and what is none: rejected by the judge, timed in a way that cannot be, or of an older text."""
    old = stale(found)
    for s in found.shapes:
        kept: list[Point] = []
        left: list[Left] = []
        key = shape_key(s.shape)
        for draw, m in enumerate(s.measured):
            v = found.workloads[s.workload].variants[m.id]
            why = old.get((s.workload, m.id), "")
            if m.check != "passed":
                why = f"check {m.check}: {m.message}"
            elif m.doubt or not m.samples_us:
                why = m.doubt or "not timed"
            if why:
                left.append(Left(s.workload, key, m.id, m.us if m.samples_us else None, why))
            else:
                kept.append(Point(s.workload, key, m.id, v.kernel, v.bindings, m.us, draw))
        yield s, kept, left
