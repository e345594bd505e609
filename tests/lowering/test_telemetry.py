"""Telemetry against an NVML of the test's own; the values are those of an H200 (nvidia-ml-py 13, driver 580)."""

from __future__ import annotations

import json
import os
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

from lowering.runtime import telemetry

UUID = "c04e6737a80102dc10ea0ab97ce29589"


class FakeNvml:
    """Looks like the module `pynvml`, one H200."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        self.mask, self.starts, self.open, self.refuses = 0, True, 0, set[str]()
        self.running: list[Any] = []
        self.clocks = iter(range(1905, 1985, 15))
        self.reads = 0

    def __getattr__(self, name: str) -> Any:
        if name in self.refuses or not name.startswith("nvmlDeviceGet"):
            raise AttributeError(name)
        answer = {
            "EnforcedPowerLimit": 700000, "PowerUsage": 130374, "EccMode": [1, 1], "MigMode": [0, 0], "PersistenceMode": 1,
            "MaxClockInfo": 1980, "Temperature": 41, "UtilizationRates": SimpleNamespace(gpu=99, memory=3),
            "MemoryInfo": SimpleNamespace(used=5 << 30), "GraphicsRunningProcesses": [],
            "ComputeRunningProcesses": self.running,
        }  # fmt: skip
        key = name.removeprefix("nvmlDeviceGet")

        def call(handle: Any, *_: Any) -> Any:
            if key not in answer:
                raise self.NVMLError("Not Supported")
            return answer[key]

        return call

    def nvmlInit(self) -> None:
        if not self.starts:
            raise self.NVMLError("NVML Shared Library Not Found")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.159.04"

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid != "GPU-c04e6737-a801-02dc-10ea-0ab97ce29589":
            raise self.NVMLError("Not Found")
        return "handle"

    def nvmlDeviceGetClockInfo(self, handle: Any, which: int) -> int:
        return next(self.clocks, 1980) if which == self.NVML_CLOCK_SM else 3201

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: Any) -> int:
        self.reads += 1
        return self.mask


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)  # type: ignore[arg-type]
    return fake


def watch(fake: FakeNvml, readings: int = 3) -> telemetry.Telemetry:
    monitor = telemetry.Monitor(UUID)
    monitor.start()
    limit = time.monotonic() + 5
    while fake.reads < readings and time.monotonic() < limit:
        time.sleep(0.001)
    seen = monitor.stop()
    assert fake.open == 0
    return seen


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "PERIOD_S", 0.001)


def test_a_run_is_summarised(nvml: FakeNvml) -> None:
    nvml.mask = 0x4
    seen = watch(nvml)
    assert (seen.faults, seen.notes) == ((), ())
    told = json.loads(json.dumps(seen.to_json()))
    assert (told["ecc"], told["mig"], told["persistence"], told["clocks"]) == ("on", "off", "on", "not locked")
    assert (told["power_limit_w"], told["power_w_max"], told["temperature_c_max"]) == (700, 130.374, 41)
    assert told["sm_mhz_min"] == 1905 and 1905 < told["sm_mhz_max"] <= 1980 and told["memory_mhz_min"] == 3201
    assert told["reasons"] == ["power cap"] and told["reason_shares"] == {"power cap": 1.0}
    assert told["samples"] >= 3 and told["driver"] == "580.159.04" and told["memory_used_mib_max"] == 5120
    assert told["processes"] == "none listed, not even this one"


@pytest.mark.parametrize(
    ("mask", "names", "invalid"),
    [(0x0, (), False), (0x4, ("power cap",), False), (0x2 | 0x10, ("application clocks", "sync boost"), False),
     (0x8, ("hardware slowdown",), True), (0x20 | 0x4, ("power cap", "thermal (software)"), True),
     (0x40, ("thermal (hardware)",), True), (0x80, ("power brake",), True)],
)  # fmt: skip
def test_some_throttling_invalidates(nvml: FakeNvml, mask: int, names: tuple[str, ...], invalid: bool) -> None:
    nvml.mask = mask
    seen = watch(nvml)
    assert tuple(seen.reasons) == names == telemetry.reasons(mask)
    assert bool(seen.faults) is invalid and all("the device was throttled" in f for f in seen.faults)


def test_a_reason_seen_once_counts(nvml: FakeNvml) -> None:
    told = telemetry.Telemetry(reasons={"power brake": 0.02}, readings=50)
    assert told.faults == ("the device was throttled: power brake",)


def process(pid: int, mib: int | None = 500) -> Any:
    return SimpleNamespace(pid=pid, usedGpuMemory=None if mib is None else mib << 20)


def test_foreign_processes_invalidate_and_our_own_tree_does_not(nvml: FakeNvml) -> None:
    nvml.running = [process(os.getpid()), process(os.getppid())]
    assert watch(nvml).faults == ()
    nvml.running = [process(os.getpid()), process(4_000_001, 900), process(4_000_002, None)]
    seen = watch(nvml)
    assert seen.faults == ("2 other process(es) used the device (pid 4000001, pid 4000002)",)
    assert seen.to_json()["others"] == [{"pid": 4_000_001, "memory_mib": 900}, {"pid": 4_000_002}]


def test_one_entry_under_another_pid_namespace_is_this_process(nvml: FakeNvml) -> None:
    nvml.running = [process(4_000_001)]
    assert watch(nvml).faults == ()
    nvml.running = [process(4_000_001, 900), process(4_000_002, 10)]
    assert watch(nvml).faults == ("1 other process(es) used the device (pid 4000002)",)


def test_what_a_driver_does_not_know_is_left_out(nvml: FakeNvml) -> None:
    nvml.refuses = {"nvmlDeviceGetPowerUsage", "nvmlDeviceGetEccMode", "nvmlDeviceGetComputeRunningProcesses",
                    "nvmlDeviceGetGraphicsRunningProcesses"}  # fmt: skip
    told = watch(nvml).to_json()
    assert "power_w_max" not in told and "ecc" not in told and told["temperature_c_max"] == 41
    assert told["processes"] == "not reported"


@pytest.mark.parametrize("why", ["no package", "no library", "no device"])
def test_without_nvml_the_record_says_why(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    uuid = UUID
    if why == "no package":
        monkeypatch.setitem(sys.modules, "pynvml", None)
    elif why == "no library":
        nvml.starts = False
    else:
        uuid = "0" * 32
    monitor = telemetry.Monitor(uuid)
    monitor.start()
    assert monitor.sm_mhz() is None
    seen = monitor.stop()
    text = {
        "no package": "nvidia-ml-py is not installed",
        "no library": "NVML does not start",
        "no device": "NVML knows no device",
    }[why]
    assert seen.faults == () and seen.notes[0].startswith(f"conditions not recorded: {text}")
    assert (
        list(seen.to_json()) == ["unavailable"] and text in telemetry.snapshot(uuid)["unavailable"] and nvml.open == 0
    )


def test_a_snapshot_is_one_reading(nvml: FakeNvml) -> None:
    told = telemetry.snapshot(UUID)
    assert (told["sm_mhz"], told["power_w"], told["reasons"], told["ecc"]) == (1905, 130.374, [], "on")
    assert nvml.open == 0
