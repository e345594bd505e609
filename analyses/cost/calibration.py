"""What one device was measured to do: the file `corpus/calibration/<device>.json`, read for the cost model.

`corpus.calibrate` writes these files from the answers of a GPU; nobody writes them by hand. A device without a file has the data-sheet
rates of its target (`DATASHEET`), marked uncalibrated; a device that is neither measured nor in that table is declined.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cake_ir.diagnostics import CakeError, error

DIRECTORY = Path(__file__).parents[2] / "corpus" / "calibration"
SPREAD = DIRECTORY / "spread"
"""How measured times lie around predictions, a file per device (`corpus.ranking.spread`)."""
FORM = "cake-calibration-1"
LONGEST = 100
"""Characters of a device's name."""

DATASHEET: Mapping[str, str] = {
    "NVIDIA A100-SXM4-80GB": "sm_80", "NVIDIA L40S": "sm_89", "NVIDIA H200": "sm_90a", "NVIDIA B200": "sm_100a", "NVIDIA B300": "sm_103a",
    "NVIDIA GeForce RTX 5090": "sm_120a",
}  # fmt: skip
"""Devices (by their CUDA name) whose data-sheet rates the target tables hold: each target's product."""


@dataclass(frozen=True)
class Rate:
    """One measured rate: `value` in `unit`, with the order-statistic interval of its median. `tensor_share`: of a clock under load, which
    part of their peak the tensor cores gave meanwhile; else 0."""

    value: float
    unit: str
    low: float
    high: float
    tensor_share: float = 0.0


@dataclass(frozen=True)
class Calibration:
    """The rates of one device. `source` says in one line what was measured when; `clocks_mhz`: SM clock under each kind of load."""

    device: str
    slug: str
    target: str
    sms: int
    date: str
    driver: str
    compiler: str
    rates: Mapping[str, Rate] = field(repr=False, default_factory=dict)

    @property
    def source(self) -> str:
        """For records: which calibration a prediction rests on."""
        return f"{self.device}, {self.date}, driver {self.driver}, {len(self.rates)} rates"

    def value(self, name: str) -> float:
        """A rate in its unit. Raises CakeError `cost/rate-missing` when this calibration lacks it."""
        found = self.rates.get(name)
        if found is None:
            raise CakeError(
                error("cost/rate-missing", "performance",
                      f"the calibration of {self.device} has no rate {name!r}; run `cake calibrate` again",
                      contract="A calibrated prediction uses measured rates only.")
            )  # fmt: skip
        return found.value

    def best(self, *prefixes: str) -> float:
        """The largest of the rates that begin with one of these. Raises CakeError `cost/rate-missing` when there is none."""
        found = [r.value for k, r in self.rates.items() if k.startswith(prefixes)]
        return max(found) if found else self.value(f"{prefixes[0]}*")

    def family(self, prefix: str) -> dict[str, float]:
        """Values of all rates that begin with `prefix`, by the rest of their name."""
        return {k[len(prefix) :]: r.value for k, r in self.rates.items() if k.startswith(prefix)}


def slug(device: str) -> str:
    """The file name of a device: `NVIDIA H200` is nvidia_h200."""
    return re.sub(r"[^a-z0-9]+", "_", device.lower()).strip("_")


def find(target: str, device: str | None = None, directory: Path = DIRECTORY) -> Calibration | None:
    """The calibration for programs of `target` on `device` (CUDA name; default: the target's product). None: data-sheet rates only.

    Raises CakeError: `cost/unknown-device` for a device that is neither measured nor in `DATASHEET`, or that runs another target;
    `cost/bad-calibration` for a file that does not parse.
    """
    wanted = device or next((d for d, t in DATASHEET.items() if t == target), None)
    if wanted is None:
        return None
    if len(wanted) > LONGEST:
        raise _unknown(f"a device's name has at most {LONGEST} characters, this one {len(wanted)}")
    path = directory / f"{slug(wanted)}.json"
    if path.is_file():
        found = _read(path, path.stat().st_mtime_ns)
        if found.target == target:
            return found
        raise _elsewhere(wanted, found.target, target)
    known = DATASHEET.get(wanted)
    if known is None:
        measured = [p.stem for p in sorted(directory.glob("*.json"))] if directory.is_dir() else []
        raise _unknown(
            f"nothing is known of {wanted!r}: no calibration (there are: {', '.join(measured) or 'none'}) and no data sheet "
            f"(there are: {', '.join(DATASHEET)}); measure it with `cake calibrate`"
        )
    if known != target:
        raise _elsewhere(wanted, known, target)
    return None


def parse(obj: object, where: str) -> Calibration:
    """A calibration from its JSON. Raises CakeError `cost/bad-calibration` naming the fault."""
    try:
        if not isinstance(obj, dict) or obj.get("form") != FORM:
            raise ValueError(f"its form is not {FORM}")
        rates = {str(k): _rate(k, r) for k, r in obj["rates"].items()}
        if int(obj["device"]["sms"]) < 1:
            raise ValueError(f"it has {obj['device']['sms']} SMs")
        return Calibration(
            device=str(obj["device"]["name"]), slug=slug(str(obj["device"]["name"])), target=str(obj["target"]),
            sms=int(obj["device"]["sms"]), date=str(obj["date"]), driver=str(obj["driver"]), compiler=str(obj["compiler"]), rates=rates,
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, AttributeError) as exc:
        raise CakeError(
            error("cost/bad-calibration", "performance", f"{where} is no calibration: {exc}",
                  contract="corpus/calibration/ holds what `cake calibrate --record` wrote.")
        ) from None  # fmt: skip


def _rate(name: str, r: Any) -> Rate:
    values = [float(r[k]) for k in ("value", "low", "high")]
    if not all(math.isfinite(v) and v > 0 for v in values):
        raise ValueError(f"{name} is not a positive number")
    share = float(r.get("tensor_share", 0.0))
    if not 0 <= share <= 1.1:
        raise ValueError(f"{name} has a share of {share} of the tensor cores")
    return Rate(values[0], str(r["unit"]), values[1], values[2], share)


def spread(device_slug: str, directory: Path = SPREAD) -> Mapping[str, tuple[float, float]]:
    """By bound class (and `all`): (low, high), between which nine in ten measured times lie as multiples of the prediction. Empty where
    nobody has compared. Raises CakeError `cost/bad-calibration`."""
    path = directory / f"{device_slug}.json"
    return _spread(path, path.stat().st_mtime_ns) if path.is_file() else {}


@functools.lru_cache(maxsize=8)
def _spread(path: Path, mtime: int) -> Mapping[str, tuple[float, float]]:
    try:
        classes = json.loads(path.read_bytes())["classes"]
        found = {str(k): (float(v[0]), float(v[1])) for k, v in classes.items()}
        if not all(0 < low <= high < math.inf for low, high in found.values()) or "all" not in found:
            raise ValueError("no interval")
        return found
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as exc:
        raise CakeError(
            error("cost/bad-calibration", "performance",
                  f"{path.name} gives no intervals ({exc}); make it with `python -m corpus.ranking spread`",
                  contract="corpus/calibration/spread/ holds what `corpus.ranking.spread` wrote.")
        ) from None  # fmt: skip


@functools.lru_cache(maxsize=8)
def _read(path: Path, mtime: int) -> Calibration:
    try:
        return parse(json.loads(path.read_bytes()), path.name)
    except (ValueError, RecursionError) as exc:
        raise CakeError(
            error("cost/bad-calibration", "performance", f"{path.name} is not JSON ({exc})", contract="A calibration is one JSON object.")
        ) from None  # fmt: skip


def _elsewhere(device: str, runs: str, target: str) -> CakeError:
    return _unknown(
        f"{device} runs {runs}, the program is bound for {target}: bind it for {runs}, or name a device that runs {target}"
    )


def _unknown(why: str) -> CakeError:
    return CakeError(
        error("cost/unknown-device", "performance", why,
              contract="A prediction is made for a device that was measured, or from a data sheet and marked so; never for another one.")
    )  # fmt: skip
