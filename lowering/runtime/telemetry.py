"""What the device was doing while it was timed, read through NVML (package nvidia-ml-py).

`Monitor` reads in the background every 50 ms. Units: MHz, degrees Celsius, watts, MiB. What a driver does not report is
a missing key; without NVML the record says why the conditions are unknown, and no result passes for a watched one.

Policy. Hardware slowdown, thermal slowdown and the power brake invalidate a timing: they hit at their own moments and
say nothing about the kernel. A power cap is recorded only: it is the normal state of dense matrix work and hits both
sides of interleaved rounds. So are application clocks, display clocks and sync boost, which hold for the whole run.
Processes outside this process's own tree that have a context on the device invalidate. Clocks are never locked here:
that needs rights and hides what users of the kernel will see.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REASONS = {
    0x1: "idle", 0x2: "application clocks", 0x4: "power cap", 0x8: "hardware slowdown", 0x10: "sync boost",
    0x20: "thermal (software)", 0x40: "thermal (hardware)", 0x80: "power brake", 0x100: "display clocks",
}  # fmt: skip
"""NVML's clock event reason bits (nvml.h, nvmlClocksEventReason*)."""
INVALIDATING = frozenset({"hardware slowdown", "thermal (software)", "thermal (hardware)", "power brake"})
RULE = f"throttled ({', '.join(sorted(INVALIDATING))}; a power cap is only recorded), or used by another process"

PERIOD_S = 0.05
STOP_S = 5.0


class Unavailable(Exception):
    """NVML cannot be used; the text says why."""


class Nvml:
    """One device as NVML sees it. Raises Unavailable. Every call may be made from any thread."""

    def __init__(self, uuid: str) -> None:
        """uuid: as CUDA gives it, 32 hex digits."""
        try:
            import pynvml
        except ImportError as exc:
            raise Unavailable("nvidia-ml-py is not installed") from exc
        self._api: Any = pynvml
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as exc:
            raise Unavailable(f"NVML does not start: {exc}") from exc
        self._handle = self._find(spelled(uuid))

    def close(self) -> None:
        """Release NVML."""
        self._try(self._api.nvmlShutdown)

    def _find(self, uuid: str) -> Any:
        api = self._api
        for name in (f"GPU-{uuid}", f"MIG-{uuid}"):
            found = self._try(api.nvmlDeviceGetHandleByUUID, name)
            if found is not None:
                return found
        if self._try(api.nvmlDeviceGetCount) == 1:  # a virtual machine may give CUDA another id than NVML
            found = self._try(api.nvmlDeviceGetHandleByIndex, 0)
            if found is not None:
                return found
        self.close()
        raise Unavailable(f"NVML knows no device GPU-{uuid}")

    def _try(self, call: Callable[..., Any], *args: Any) -> Any:
        """The answer, or None where the device or driver does not support the question."""
        try:
            return call(*args)
        except self._api.NVMLError:
            return None

    def _ask(self, name: str, *args: Any) -> Any:
        call = getattr(self._api, f"nvmlDeviceGet{name}", None)
        return None if call is None else self._try(call, self._handle, *args)

    def sm_mhz(self) -> float | None:
        """The SM clock now; about 5 microseconds."""
        return self._ask("ClockInfo", self._api.NVML_CLOCK_SM)

    def facts(self) -> dict[str, Any]:
        """What does not change during a run."""
        api, on = self._api, self._switch
        limit = self._ask("EnforcedPowerLimit")
        driver = self._try(api.nvmlSystemGetDriverVersion)
        return _known(
            {
                "driver": driver.decode() if isinstance(driver, bytes) else driver,
                "sm_max_mhz": self._ask("MaxClockInfo", api.NVML_CLOCK_SM),
                "memory_max_mhz": self._ask("MaxClockInfo", api.NVML_CLOCK_MEM),
                "power_limit_w": None if limit is None else limit / 1000,
                "ecc": on(self._ask("EccMode")),
                "mig": on(self._ask("MigMode")),
                "persistence": on(self._ask("PersistenceMode")),
                "clocks": "not locked",
            }
        )

    def _switch(self, value: Any) -> str | None:
        """On or off, of a number or of (now, after the next reset)."""
        now = value[0] if isinstance(value, (list, tuple)) else value
        return None if now is None else "on" if now else "off"

    def reading(self) -> Reading:
        """What changes, now."""
        api = self._api
        power, memory, use = self._ask("PowerUsage"), self._ask("MemoryInfo"), self._ask("UtilizationRates")
        mask = self._ask("CurrentClocksEventReasons")
        if mask is None:  # the name before driver 535
            mask = self._ask("CurrentClocksThrottleReasons")
        values = {
            "sm_mhz": self.sm_mhz(),
            "memory_mhz": self._ask("ClockInfo", api.NVML_CLOCK_MEM),
            "power_w": None if power is None else power / 1000,
            "temperature_c": self._ask("Temperature", api.NVML_TEMPERATURE_GPU),
            "memory_used_mib": None if memory is None else memory.used >> 20,
            "utilisation": None if use is None else use.gpu,
        }
        return Reading(_known(values), reasons(mask or 0))

    def processes(self) -> list[dict[str, Any]] | None:
        """Processes with a context on the device, this one's tree included; None where NVML does not say.

        `sm`: percent of the SMs in the last seconds, where reported. A virtual machine or container may hide them.
        """
        lists = [self._ask("ComputeRunningProcesses"), self._ask("GraphicsRunningProcesses")]
        if all(found is None for found in lists):
            return None
        since = int((time.time() - 2) * 1e6)
        busy = {s.pid: s.smUtil for s in self._ask("ProcessUtilization", since) or ()}
        out: dict[int, dict[str, Any]] = {}
        for p in [p for found in lists for p in found or ()]:
            used = None if p.usedGpuMemory is None else p.usedGpuMemory >> 20
            out[p.pid] = _known({"pid": p.pid, "memory_mib": used, "sm": busy.get(p.pid)})
        return list(out.values())


@dataclass(frozen=True)
class Reading:
    """One reading; absent numbers are missing keys."""

    values: dict[str, float]
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Telemetry:
    """The record of one run; `unavailable` says why there is none. `reasons`: share of the readings with each reason."""

    unavailable: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    values: Mapping[str, Sequence[float]] = field(default_factory=dict)
    reasons: Mapping[str, float] = field(default_factory=dict)
    others: tuple[dict[str, Any], ...] = ()
    processes: str = "listed"
    readings: int = 0

    @property
    def faults(self) -> tuple[str, ...]:
        """Why the timing must not count; empty when it may."""
        out = [f"the device was throttled: {r}" for r in self.reasons if r in INVALIDATING]
        if self.others:
            who = ", ".join(f"pid {p['pid']}" for p in self.others[:4])
            out.append(f"{len(self.others)} other process(es) used the device ({who})")
        return tuple(out)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the numbers should know."""
        if self.unavailable:
            return (f"conditions not recorded: {self.unavailable}",)
        out = []
        if self.facts.get("mig") == "on":
            out.append("MIG is on: other slices share power and clocks")
        if not self.readings:
            out.append("conditions not recorded: NVML gave no reading during the run")
        return tuple(out)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values: of each number the least, mean and most over the run."""
        if self.unavailable:
            return {"unavailable": self.unavailable}
        spread = {
            f"{name}_{word}": round(float(f(column)), 3)
            for name, column in self.values.items()
            for word, f in (("min", min), ("mean", statistics.fmean), ("max", max))
        }
        return {
            **self.facts, **spread, "reasons": list(self.reasons),
            "reason_shares": {k: round(v, 3) for k, v in self.reasons.items()}, "other_processes": len(self.others),
            "others": list(self.others), "processes": self.processes, "samples": self.readings, "period_ms": PERIOD_S * 1000,
        }  # fmt: skip


class Monitor:
    """Reads the device in the background between `start` and `stop`."""

    def __init__(self, uuid: str) -> None:
        self._readings: list[Reading] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cake-telemetry", daemon=True)
        self._nvml: Nvml | None = None
        self._why = ""
        try:
            self._nvml = Nvml(uuid)
        except Unavailable as exc:
            self._why = str(exc)

    def start(self) -> None:
        """Go on in the background."""
        if self._nvml:
            self._thread.start()

    def sm_mhz(self) -> float | None:
        """The SM clock now, or None; cheap enough for every sample."""
        return self._nvml.sm_mhz() if self._nvml else None

    def stop(self) -> Telemetry:
        """End and summarise. Call right after the last timed launch."""
        if self._nvml is None:
            return Telemetry(unavailable=self._why)
        self._stop.set()
        self._thread.join(timeout=STOP_S)
        nvml, during = self._nvml, list(self._readings)
        listed = nvml.processes()
        seen = Telemetry(
            facts=nvml.facts(),
            values=_columns(during),
            reasons={r: n / len(during) for r, n in Counter(r for s in during for r in s.reasons).items()},
            others=tuple(foreign(listed or [])),
            processes="not reported" if listed is None else "listed" if listed else "none listed, not even this one",
            readings=len(during),
        )
        if not self._thread.is_alive():  # else NVML hangs in it, and closing it under a call may crash
            nvml.close()
        return seen

    def _run(self) -> None:
        assert self._nvml is not None
        while True:
            self._readings.append(self._nvml.reading())
            if self._stop.wait(PERIOD_S):
                return


def snapshot(uuid: str) -> dict[str, Any]:
    """Facts and one reading as plain JSON, or {"unavailable": reason}."""
    try:
        nvml = Nvml(uuid)
    except Unavailable as exc:
        return {"unavailable": str(exc)}
    now = nvml.reading()
    out = {**nvml.facts(), **now.values, "reasons": list(now.reasons)}
    nvml.close()
    return out


def reasons(mask: int) -> tuple[str, ...]:
    """The names of the clock event reasons in a mask."""
    return tuple(name for bit, name in REASONS.items() if mask & bit)


def foreign(listed: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The listed processes that are not of this process's tree (its ancestors, itself, its descendants).

    NVML in a container may list host process ids, under which this process does not know itself: then one of the
    entries is this one, and the list is without the largest.
    """
    me = os.getpid()
    above = set(_ancestors(me))
    others = [dict(p) for p in listed if p["pid"] != me and p["pid"] not in above and me not in _ancestors(p["pid"])]
    if others and len(others) == len(listed):
        others.remove(max(others, key=lambda p: p.get("memory_mib") or 0))
    return others


def _ancestors(pid: int) -> list[int]:
    """Parents up to the first process, from /proc; empty where that is not readable."""
    out: list[int] = []
    while pid > 1 and len(out) < 64:
        try:
            # the command in parentheses may hold anything, spaces and parentheses included
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            break
        out.append(pid)
    return out


def spelled(digits: str) -> str:
    """A device id of 32 hex digits as NVML spells it."""
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in values.items() if v is not None}


def _columns(during: Sequence[Reading]) -> dict[str, list[float]]:
    names = dict.fromkeys(k for r in during for k in r.values)
    return {k: [r.values[k] for r in during if k in r.values] for k in names}
