"""The records of the speed tables: `corpus/results/speed/NAME.json` holds one `Table`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cake_ir.diagnostics import CakeError, error
from corpus import evidence

DIRECTORY = evidence.DIRECTORY / "speed"
KIND = "speed"


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Program(_Model):
    """One kernel variant that a launch of ours enqueued. The fields are those by which `corpus.rebuild` tells staleness."""

    kernel: str
    content_id: str
    variant_id: str
    contract: str
    contract_digest: str
    target: str
    bindings: dict[str, Any]
    compiler: str
    cubin_sha256: str
    route: str = Field(default="", description="why the dispatcher chose it")


class Time(_Model):
    """One contender of a row: microseconds per launch (or per call, or per iteration: the table says which).

    ratio: its time over ours, above 1 ours is faster, with interval and verdict by `lowering.runtime.stats`; None for ours.
    checked: what the float64 check of its outputs found. detail: a configuration that it chose, in words.
    """

    name: str
    us: float
    samples_us: tuple[float, ...]
    batch: int = 1
    cv: float | None = None
    sm_mhz: float | None = None
    ratio: float | None = None
    ratio_interval: tuple[float, float] | None = None
    verdict: Literal["faster", "slower", "inconclusive"] | None = None
    versions: dict[str, str] = Field(default_factory=dict)
    detail: str = ""
    computes: bool = True
    checked: dict[str, Any] = Field(default_factory=dict)


class Row(_Model):
    """One shape. `ours` is None where Cake does not serve it (`refused` says why). against: the others, fastest first.

    group: what the row counts for ("" or a sub-heading of the table). flops: of the contract, for rates. faults: why the
    row's numbers must not be used; such a row stays in the file and out of every mean.
    """

    shape: dict[str, int]
    layout: str = ""
    group: str = ""
    flops: float = 0.0
    ours: Time | None = None
    refused: str = ""
    programs: tuple[Program, ...] = ()
    against: tuple[Time, ...] = ()
    method: str = ""
    faults: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    conditions: dict[str, Any] = Field(default_factory=dict)

    def peer(self, name: str) -> Time | None:
        """A contender by name, or None."""
        return next((t for t in self.against if t.name == name), None)

    def best(self, names: Iterable[str]) -> Time | None:
        """The fastest of these contenders that computes the contract."""
        found = [t for n in names if (t := self.peer(n)) is not None and t.computes]
        return min(found, key=lambda t: t.us, default=None)

    def counts(self) -> bool:
        """Whether the row has a ratio that may be used."""
        return self.ours is not None and bool(self.against) and not self.faults


class Table(_Model):
    """One table. facts: numbers that belong to the table, not to a row. date: ISO 8601, UTC, of the measurement."""

    kind: Literal["speed"] = KIND
    name: str
    title: str
    what: str
    rows: tuple[Row, ...]
    facts: dict[str, Any] = Field(default_factory=dict)
    device: str
    driver: str = ""
    compiler: str = ""
    versions: dict[str, str] = Field(default_factory=dict)
    rule: str = ""
    command: str
    date: str
    commit: str = ""


def geomean(ratios: Iterable[float]) -> float:
    """The geometric mean; NaN of nothing."""
    logs = [math.log(r) for r in ratios]
    return math.exp(math.fsum(logs) / len(logs)) if logs else math.nan


def path(name: str, directory: Path = DIRECTORY) -> Path:
    """Where a table lies."""
    return directory / f"{name}.json"


def write(table: Table, directory: Path = DIRECTORY) -> Path:
    """Write a table, replacing the file as a whole."""
    return evidence.replace(
        path(table.name, directory), table.model_dump(mode="json", exclude_defaults=True) | {"kind": KIND}
    )


def read(name: str, directory: Path = DIRECTORY) -> Table | None:
    """A committed table; None when it has not been measured. Raises CakeError `corpus/bad-results`."""
    file = path(name, directory)
    if not file.exists():
        return None
    try:
        return Table.model_validate(json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, ValidationError) as exc:
        law = "Files under corpus/results/speed/ hold tables as corpus.speed writes them."
        raise CakeError(error("corpus/bad-results", "data", f"speed/{file.name}: {exc}", contract=law)) from exc
