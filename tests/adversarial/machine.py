"""A machine without a GPU on which fixtures are Python: real runtime, real evaluation, and a driver that keeps time.

Only `cuda.bindings.driver` is replaced. A cubin names a cheat and a contract; launching it runs the cheat's function
(`bodies.py`) on the memory that the launch points at and lets as much device time go by as work was done.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from corpus.arrays import numpy_dtype
from corpus.contract import Contract, Shape, contracts
from corpus.gpu_buffers import Env
from lowering.plan import LaunchPlan
from lowering.runtime import device, errors, host, tensor_map
from tests.adversarial.bodies import BODIES
from tests.lowering.toolchain_fake_driver import OK, FakeDriver

FULL_US = 2000.0
"""Device time of a launch that does all of its work."""


def at(pointer: int, nbytes: int) -> np.ndarray:
    """The bytes at an address."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(pointer)) if nbytes else np.zeros(0, np.uint8)


@dataclass
class Call:
    """One launch as its body sees it. launch: how often the cubin ran before. kept: state that survives launches."""

    contract: Contract
    shape: Shape
    tensors: dict[str, np.ndarray]
    pointers: dict[str, int]
    launch: int
    kept: dict[Any, Any]

    @property
    def inputs(self) -> dict[str, np.ndarray]:
        """Views of the inputs."""
        return {t.name: self.tensors[t.name] for t in self.contract.tensors if t.direction == "in"}

    @property
    def first(self) -> np.ndarray:
        """The first input, flat."""
        return next(iter(self.inputs.values())).reshape(-1)

    @property
    def out(self) -> np.ndarray:
        """The output, flat."""
        return self.tensors[self.contract.outputs[0].name].reshape(-1)

    def beside_output(self, offset: int, count: int) -> np.ndarray:
        """`count` elements that begin `offset` elements from the output's start, inside or outside of it."""
        size = self.out.itemsize
        return at(self.pointers[self.contract.outputs[0].name] + offset * size, count * size).view(self.out.dtype)


@dataclass
class CheatDriver(FakeDriver):
    """The driver. A cubin is `name contract`."""

    launched: dict[bytes, int] = field(default_factory=dict)
    kept: dict[bytes, dict[Any, Any]] = field(default_factory=dict)
    seen: dict[Any, tuple[str, Contract, Shape, dict[str, np.ndarray], dict[str, int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__()

    def cuModuleGetFunction(self, module: Any, name: bytes) -> Any:
        return OK, module[1]

    def cuLaunchKernelEx(self, config: Any, function: Any, params: int, extra: int) -> Any:
        addresses = (ctypes.c_void_p * 8).from_address(params)
        pointers = [ctypes.c_uint64.from_address(a or 0).value for a in addresses[:4]]
        extents = [ctypes.c_int32.from_address(a or 0).value for a in addresses[4:]]

        def run() -> None:
            self.work(FULL_US * self._run(function, pointers, extents))

        # how long it takes is known only when it has run, be it in a graph
        self.work(0.0, run)
        return (OK,)

    def _run(self, cubin: bytes, pointers: list[int], extents: list[int]) -> float:
        arguments = (cubin, *pointers, *extents)  # a benchmark launches the same thousands of times
        if arguments not in self.seen:
            self.seen[arguments] = self._arguments(cubin, pointers, extents)
        name, contract, shape, tensors, named = self.seen[arguments]
        launch = self.launched.get(cubin, 0)
        self.launched[cubin] = launch + 1
        call = Call(contract, shape, tensors, named, launch, self.kept.setdefault(cubin, {}))
        share = BODIES[name](call)
        return 1.0 if share is None else share

    def _arguments(
        self, cubin: bytes, pointers: list[int], extents: list[int]
    ) -> tuple[str, Contract, Shape, dict[str, np.ndarray], dict[str, int]]:
        """Which body, and the contract, shape, views of tensors and addresses that it gets."""
        name, _, of = cubin.decode().partition(" ")
        contract = contracts()[of]
        shape = dict(zip(contract.dims, extents, strict=False))
        inputs = [t for t in contract.tensors if t.direction == "in"]
        named = {t.name: p for t, p in zip(inputs, pointers, strict=False)} | {contract.outputs[0].name: pointers[3]}
        tensors = {}
        for t in contract.tensors:
            dtype, full = numpy_dtype(contract.dtype(t, {})), contract.extents(t, shape)
            tensors[t.name] = at(named[t.name], dtype.itemsize * int(np.prod(full))).view(dtype).reshape(full)
        return name, contract, shape, tensors, named


@contextmanager
def machine() -> Iterator[Env]:
    """The machine; nothing is leaked on it when the block ends."""
    fake = CheatDriver()
    with pytest.MonkeyPatch.context() as patch:
        for module in (errors, device, tensor_map):
            patch.setattr(module, "driver", lambda: fake)
        with device.Device() as opened:
            stream = opened.new_stream()

            def prepare(cubin: bytes, plan: Any, pointers: Any) -> Callable[[int], None]:
                return host.prepare(opened, cubin, LaunchPlan.from_json(dict(plan)), pointers)

            yield Env(opened, None, prepare, stream)
        assert not fake.memory, "a buffer was leaked"


def cubin(name: str, contract: Contract) -> tuple[bytes, str]:
    """The image that stands for a fixture on this machine, and its SHA-256."""
    image = f"{name} {contract.name}".encode()
    return image, hashlib.sha256(image).hexdigest()
