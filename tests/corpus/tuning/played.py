"""A GPU played for tuning: assignments are really computed (numpy, over host memory), times are made up per variant and shape.

`Played(times)` is an `Env`; `times(kernel, bindings, dims)` gives microseconds. `wrong`, `hangs` and `faults` name candidates by
a part of their id.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from cake_ir.diagnostics import CakeError, error
from corpus.gpu_buffers import Env
from corpus.tuning.campaign import Campaign
from lowering.runtime import bench, stats
from lowering.runtime.device import DeviceInfo
from lowering.runtime.patience import Patience
from tests.corpus.fake_device import FakeDevice, at

SMS = 132
INFO = DeviceInfo(
    index=0, name="Played H200", uuid="12" * 16, compute_capability=(9, 0), sms=SMS, total_bytes=1 << 37, l2_bytes=50 << 20,
    smem_per_block=227 << 10, smem_per_sm=228 << 10, sm_clock_mhz=1980, memory_clock_mhz=3201, ecc=True, driver="13.0",
)  # fmt: skip
Times = Callable[[str, Mapping[str, Any], Mapping[str, int]], float]


class PlayedDevice(FakeDevice):
    def __init__(self) -> None:
        super().__init__()
        self.patience = Patience()

    def info(self) -> DeviceInfo:
        return INFO

    def fill(self, pointer: int, nbytes: int, pattern: int, width: int = 1, stream: int = 0) -> None:
        at(pointer, nbytes)[:] = np.frombuffer(pattern.to_bytes(width, "little") * (nbytes // width), np.uint8)


class Played:
    """See the module. `env()` for `corpus.tuning.run.attempt`; `bench` replaces `lowering.runtime.bench.bench`."""

    def __init__(self, campaign: Campaign, times: Times, noise: float = 0.002, seed: int = 0) -> None:
        self.campaign, self.times = campaign, times
        self.noise, self.random = noise, random.Random(seed)
        self.wrong: tuple[str, ...] = ()
        self.faults: tuple[str, ...] = ()
        self.dims: dict[str, int] = {}
        self.launched: list[str] = []
        self.by_sha = {c.cubins[k]: c for c in campaign.candidates for k in c.cubins}

    def env(self) -> Env:
        return Env(PlayedDevice(), None, self._prepare)

    def _prepare(self, cubin: bytes, plan: Mapping[str, Any], pointers: Mapping[str, int]) -> Callable[[int], None]:
        record = self.by_sha[str(plan["cubin_sha256"])]
        (m,) = [m for m in plan["tensor_maps"].values() if m["tensor"] == "x"]
        (mc,) = [m for m in plan["tensor_maps"].values() if m["tensor"] == "c"]
        d, n, b = m["dims"]
        c = mc["dims"][1]
        self.dims = {"B": b, "N": n, "C": c, "D": d}

        def launch(stream: int) -> None:
            self.launched.append(record.id)
            if any(part in record.id for part in self.faults):
                raise CakeError(error("lowering/device-fault", "hardware", "an illegal address was accessed"))
            x, y = (
                at(pointers[t], 2 * b * rows * d).view(ml_dtypes.bfloat16).reshape(b, rows, d).astype(np.float32)
                for t, rows in (("x", n), ("c", c))
            )
            sq = at(pointers["c_sq"], 4 * b * c).view(np.float32).reshape(b, 1, c)
            label = np.argmin(sq - 2 * np.matmul(x, y.swapaxes(1, 2)), axis=2).astype(np.int32)
            if any(part in record.id for part in self.wrong):
                label[0, 0] = (label[0, 0] + c // 2) % c
            at(pointers["label"], 4 * b * n).view(np.int32).reshape(b, n)[...] = label

        return launch

    def us(self, name: str) -> float:
        record = self.campaign.record(name)
        return self.times(record.kernel, record.bindings, self.dims)

    def bench(self, device: Any, candidates: Any, settings: bench.Settings, stream: int) -> bench.BenchResult:
        """Samples around the made-up time of each candidate; the second of the first has another name."""
        timings = []
        for c in candidates:
            name = candidates[0].name if c.name == "again" else c.name
            us = self.us(name)
            samples = tuple(us * (1 + self.random.gauss(0, self.noise)) for _ in range(settings.rounds))
            timings.append(bench.Timing(c.name, stats.summarise(samples), samples, 8, 1))
        return bench.BenchResult("warm", "graph", tuple(timings), (), (), (), {}, None, 0.03, 1.3)
