"""What the device was doing while it was timed: clocks, temperature, power, throttling, other users.

Read through `nvidia-smi` (argument list, no shell), because it needs no extra library and works beside any process.
Fields a driver does not know are left out. Units: MHz, degrees Celsius, watts.
"""

from __future__ import annotations

import subprocess
import threading
from dataclasses import dataclass, field
from typing import Any

_FIELDS = {
    "sm_mhz": "clocks.current.sm",
    "memory_mhz": "clocks.current.memory",
    "sm_max_mhz": "clocks.max.sm",
    "temperature_c": "temperature.gpu",
    "power_w": "power.draw",
    "power_limit_w": "power.limit",
    "throttle": "clocks_event_reasons.active",
    "ecc": "ecc.mode.current",
    "mig": "mig.mode.current",
    "driver": "driver_version",
}
_OLD_NAMES = {"clocks_event_reasons.active": "clocks_throttle_reasons.active"}
_NUMERIC = ("sm_mhz", "memory_mhz", "sm_max_mhz", "temperature_c", "power_w", "power_limit_w")

# NVML's clock event reason bits.
_REASONS = {
    0x1: "idle", 0x2: "application clocks", 0x4: "power cap", 0x8: "hardware slowdown", 0x10: "sync boost",
    0x20: "thermal (software)", 0x40: "thermal (hardware)", 0x80: "power brake", 0x100: "display clocks",
}  # fmt: skip
INVALIDATING = frozenset({"hardware slowdown", "thermal (software)", "thermal (hardware)", "power brake"})
"""A timing taken under one of these says nothing about the kernel. A power cap is recorded, not fatal: it hits both
sides of an interleaved comparison and is normal for dense matrix work."""

TIMEOUT_S = 10.0
PERIOD_S = 0.25


@dataclass(frozen=True)
class Sample:
    """One reading; absent numbers are missing keys."""

    values: dict[str, float]
    reasons: tuple[str, ...] = ()
    text: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Telemetry:
    """Readings before, during and after a run."""

    before: Sample | None
    after: Sample | None
    sm_mhz_min: float | None
    sm_mhz_max: float | None
    power_w_max: float | None
    temperature_c_max: float | None
    reasons: tuple[str, ...]
    other_processes: int
    samples: int

    @property
    def faults(self) -> tuple[str, ...]:
        """Why the timing must not count; empty when it may."""
        out = [f"the device was throttled: {r}" for r in self.reasons if r in INVALIDATING]
        if self.other_processes > 0:
            out.append(f"{self.other_processes} other process(es) used the device")
        return tuple(out)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""

        def plain(sample: Sample | None) -> dict[str, Any] | None:
            return None if sample is None else {**sample.values, **sample.text, "reasons": list(sample.reasons)}

        return {
            "before": plain(self.before),
            "after": plain(self.after),
            "sm_mhz_min": self.sm_mhz_min,
            "sm_mhz_max": self.sm_mhz_max,
            "power_w_max": self.power_w_max,
            "temperature_c_max": self.temperature_c_max,
            "reasons": list(self.reasons),
            "other_processes": self.other_processes,
            "samples": self.samples,
        }


def read(selector: str) -> Sample | None:
    """One reading of the device (`selector`: its index or GPU-uuid for nvidia-smi); None when nvidia-smi is absent."""
    names = list(_FIELDS.values())
    row = _query(selector, names)
    if row is None:  # an older driver knows the older name
        row = _query(selector, [_OLD_NAMES.get(n, n) for n in names])
    return None if row is None else parse_row(dict(zip(_FIELDS, row, strict=True)))


def parse_row(row: dict[str, str]) -> Sample:
    """A reading from nvidia-smi's words."""
    values: dict[str, float] = {}
    for key in _NUMERIC:
        try:
            values[key] = float(row[key])
        except (KeyError, ValueError):
            continue
    try:
        mask = int(row.get("throttle", ""), 16)
    except ValueError:
        mask = 0
    reasons = tuple(name for bit, name in _REASONS.items() if mask & bit)
    text = {k: row[k] for k in ("ecc", "mig", "driver") if k in row}
    return Sample(values, reasons, text)


class Monitor:
    """Reads the device in the background between `start` and `stop`."""

    def __init__(self, selector: str, own_processes: int = 1) -> None:
        self._selector, self._own = selector, own_processes
        self._stop = threading.Event()
        self._samples: list[Sample] = []
        self._thread = threading.Thread(target=self._run, name="cake-telemetry", daemon=True)
        self._before: Sample | None = None

    def start(self) -> None:
        """Take the first reading and go on in the background."""
        self._before = read(self._selector)
        self._thread.start()

    def stop(self) -> Telemetry:
        """End and summarise. Call right after the last timed launch, while clocks are still up."""
        after = read(self._selector)
        self._stop.set()
        self._thread.join(timeout=TIMEOUT_S)
        during = [*self._samples, *([after] if after else [])]

        def column(key: str) -> list[float]:
            return [s.values[key] for s in during if key in s.values]

        clocks, power, heat = column("sm_mhz"), column("power_w"), column("temperature_c")
        return Telemetry(
            before=self._before,
            after=after,
            sm_mhz_min=min(clocks, default=None),
            sm_mhz_max=max(clocks, default=None),
            power_w_max=max(power, default=None),
            temperature_c_max=max(heat, default=None),
            reasons=tuple(dict.fromkeys(r for s in during for r in s.reasons)),
            other_processes=max(process_count(self._selector) - self._own, 0),
            samples=len(during),
        )

    def _run(self) -> None:
        while not self._stop.wait(PERIOD_S):
            sample = read(self._selector)
            if sample is None:
                return
            self._samples.append(sample)


def process_count(selector: str) -> int:
    """Processes with a context on the device, 0 when that is not shown (containers often hide them)."""
    lines = _run(["nvidia-smi", "-i", selector, "--query-compute-apps=pid", "--format=csv,noheader"])
    return 0 if lines is None else sum(1 for line in lines if line.strip().isdigit())


def _query(selector: str, names: list[str]) -> list[str] | None:
    command = ["nvidia-smi", "-i", selector, f"--query-gpu={','.join(names)}", "--format=csv,noheader,nounits"]
    lines = _run(command)
    if not lines:
        return None
    cells = [cell.strip() for cell in lines[0].split(",")]
    return cells if len(cells) == len(names) else None


def _run(command: list[str]) -> list[str] | None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.splitlines() if done.returncode == 0 else None
