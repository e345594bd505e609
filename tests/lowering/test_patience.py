"""The limit on waits for the device, and what messages say of launches: over the fake driver."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from cake_ir.diagnostics import CakeError
from lowering.plan import Arg, LaunchPlan
from lowering.runtime import errors, host
from lowering.runtime.device import Device
from lowering.runtime.patience import Patience
from tests.lowering.toolchain_fake_driver import FakeDriver

CUBIN = b"cubin"


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    fake = FakeDriver()
    for module in ("device", "errors"):
        monkeypatch.setattr(f"lowering.runtime.{module}.driver", lambda: fake)
    return fake


@pytest.fixture
def device(driver: FakeDriver) -> Device:
    return Device(0)


def prepared(device: Device) -> host.PreparedLaunch:
    import hashlib

    plan = LaunchPlan("k", hashlib.sha256(CUBIN).hexdigest(), 1, 1, 128, 0, False, False, (Arg("tensor", "x"),))
    return host.prepare(device, CUBIN, plan, {"x": device.alloc(64).pointer})


def test_a_wait_past_its_limit_is_seen_from_another_thread() -> None:
    patience, seen = Patience(), threading.Event()
    patience.limit(0.05, seen.set)
    with patience.waiting():
        assert seen.wait(5)


def test_short_waits_and_pauses_between_waits_are_no_hang() -> None:
    patience, seen = Patience(), threading.Event()
    patience.limit(0.3, seen.set)
    for _ in range(3):
        with patience.waiting():
            time.sleep(0.01)
    time.sleep(0.5)
    assert not seen.is_set()


@pytest.mark.parametrize("call", ["cuCtxSynchronize", "cuStreamSynchronize", "cuEventSynchronize", "cuMemcpyDtoH"])
def test_every_call_that_blocks_is_limited(
    driver: FakeDriver, device: Device, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = threading.Event()
    armed: list[bool] = []
    device.patience.limit(60, seen.set)

    def block(*_: Any) -> Any:
        armed.append(device.patience._deadline is not None)
        return (errors.driver().CUresult.CUDA_SUCCESS,)

    monkeypatch.setattr(driver, call, block, raising=False)
    if call == "cuCtxSynchronize":
        device.synchronize()
    elif call == "cuStreamSynchronize":
        device.wait_stream(device.new_stream())
    elif call == "cuEventSynchronize":
        device.event().wait()
    else:
        device.read(device.alloc(8).pointer, 8)
    assert armed and all(armed) and device.patience._deadline is None


def test_launches_are_pending_until_the_device_rests(device: Device) -> None:
    run, stream = prepared(device), device.new_stream()
    run(stream)
    run(stream)
    assert device.patience.pending == ["k", "k"] and device.patience.done == 0
    device.wait_stream(stream)
    assert device.patience.pending == [] and device.patience.done == 2
    device.patience.begin()
    assert device.patience.done == 0


def test_a_captured_launch_is_pending_when_the_graph_runs_not_when_it_is_recorded(device: Device) -> None:
    run, stream = prepared(device), device.new_stream()
    with device.capture(stream) as graph:
        run(stream)
    assert device.patience.pending == []
    graph.launch(stream)
    graph.launch(stream)
    assert device.patience.pending == ["k", "k"]


def test_a_refused_launch_is_an_error_and_never_pending(driver: FakeDriver, device: Device) -> None:
    run = prepared(device)
    driver.fail["cuLaunchKernelEx"] = driver.CUresult.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(CakeError) as caught:
        run(device.new_stream())
    assert caught.value.diagnostic.rule == "lowering/launch-refused" and device.patience.pending == []


def test_what_faulted_stays_pending_for_the_message(driver: FakeDriver, device: Device) -> None:
    run = prepared(device)
    run(device.new_stream())
    driver.fail["cuCtxSynchronize"] = driver.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
    with pytest.raises(CakeError) as caught:
        device.synchronize()
    assert caught.value.diagnostic.rule == "lowering/device-fault" and device.patience.pending == ["k"]
