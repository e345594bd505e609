"""From a launch plan and device pointers to a launch that costs little Python.

Arguments are packed once into C memory; `PreparedLaunch.launch` then makes a single driver call. Pointers are fixed at
preparation: rotate buffers by preparing one launch per buffer set.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Mapping
from typing import Any

from cake_ir.diagnostics import CakeError, error
from lowering.plan import BASE_ALIGNMENT, Arg, LaunchPlan, validate
from lowering.runtime.device import Device, Kernel
from lowering.runtime.errors import check, cuda_error
from lowering.runtime.tensor_map import EncodedMap, encode_tensor_map
from lowering.timeline import POINTER, RECORD_BYTES

PORTABLE_CLUSTER = 8
"""Largest cluster that needs no opt-in (CUDA programming guide, thread block clusters)."""

_SCALARS: dict[str, Any] = {"i32": ctypes.c_int32, "i64": ctypes.c_int64, "f32": ctypes.c_float}


class PreparedLaunch:
    """One launch with its arguments in place. Keeps everything alive that the driver reads."""

    def __init__(self, kernel: Kernel, plan: LaunchPlan, storage: list[Any], addresses: list[int]) -> None:
        self.kernel, self.plan = kernel, plan
        self._cu = kernel.device.cu
        self._patience = kernel.device.patience
        self._storage = storage
        self._array = (ctypes.c_void_p * max(len(addresses), 1))(*addresses)
        self._params = ctypes.addressof(self._array)
        self._configs: dict[int, Any] = {}

    def launch(self, stream: int) -> None:
        """Enqueue on `stream`; raises CakeError when the driver refuses. Faults show at the next synchronisation."""
        config = self._configs.get(stream)
        if config is None:
            config = self._configs[stream] = self._config(stream)
        status = self._cu.cuLaunchKernelEx(config, self.kernel.function, self._params, 0)[0]
        if status:
            raise cuda_error(status, f"launch {self.plan.symbol}")
        self._patience.pending.append(self.plan.symbol)

    __call__ = launch

    def max_clusters(self) -> int:
        """How many clusters (CTAs, without clusters) the device holds at once: the driver's answer."""
        if self.plan.cluster == 1:
            per_sm = self.kernel.blocks_per_sm(self.plan.threads, self.plan.smem_bytes)
            return per_sm * self.kernel.device.attribute("MULTIPROCESSOR_COUNT")
        result = self._cu.cuOccupancyMaxActiveClusters(self.kernel.function, self._config(0))
        return int(check(result, f"launch {self.plan.symbol}: count resident clusters"))

    def _config(self, stream: int) -> Any:
        cu, plan = self._cu, self.plan
        config = cu.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = plan.grid, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = plan.threads, 1, 1
        config.sharedMemBytes = plan.smem_bytes
        config.hStream = cu.CUstream(stream)
        attributes = self._attributes()
        if attributes:
            config.attrs = attributes
        config.numAttrs = len(attributes)
        return config

    def _attributes(self) -> list[Any]:
        cu, plan, ids = self._cu, self.plan, self._cu.CUlaunchAttributeID
        out: list[Any] = []
        if plan.cluster > 1:
            cluster = cu.CUlaunchAttribute()
            cluster.id = ids.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            cluster.value.clusterDim.x = plan.cluster
            cluster.value.clusterDim.y = 1
            cluster.value.clusterDim.z = 1
            out.append(cluster)
        if plan.pdl:
            dependent = cu.CUlaunchAttribute()
            dependent.id = ids.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            dependent.value.programmaticStreamSerializationAllowed = 1
            out.append(dependent)
        if plan.cooperative:
            cooperative = cu.CUlaunchAttribute()
            cooperative.id = ids.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
            cooperative.value.cooperative = 1
            out.append(cooperative)
        return out


def prepare(device: Device, cubin: bytes, plan: LaunchPlan, pointers: Mapping[str, int]) -> PreparedLaunch:
    """Load `cubin`, encode tensor maps, pack arguments and set function attributes.

    `pointers` gives the device address of every tensor in `plan.tensors`, and of the timeline's buffer under `timeline.POINTER` for an
    instrumented kernel. Raises CakeError `lowering/bad-plan` for a
    plan that does not belong to the cubin or lacks a pointer, `lowering/launch-refused` when no block fits an SM.
    """
    validate(plan)
    if hashlib.sha256(cubin).hexdigest() != plan.cubin_sha256:
        raise _bad("the plan belongs to another cubin")
    wanted = [*plan.tensors, *(POINTER for a in plan.args if a.kind == "timeline")]
    missing = [name for name in wanted if name not in pointers]
    if missing:
        raise _bad(f"no device pointer for {', '.join(missing)}")
    odd = [name for name in plan.tensors if pointers[name] % BASE_ALIGNMENT]
    if odd:
        raise _bad(f"the base pointer of {', '.join(odd)} is not aligned to {BASE_ALIGNMENT} bytes")
    kernel = device.load(cubin).kernel(plan.symbol)
    _set_attributes(kernel, plan)
    maps = {name: encode_tensor_map(m, pointers[m.tensor]) for name, m in plan.tensor_maps.items()}
    storage, addresses = pack_arguments(plan, pointers, maps)
    prepared = PreparedLaunch(kernel, plan, storage, addresses)
    _require_residency(prepared)
    return prepared


def pack_arguments(
    plan: LaunchPlan, pointers: Mapping[str, int], maps: Mapping[str, EncodedMap]
) -> tuple[list[Any], list[int]]:
    """(objects to keep alive, address of each argument's value) in signature order."""
    storage: list[Any] = []
    addresses: list[int] = []
    for arg in plan.args:
        if arg.kind == "tensor_map":
            storage.append(maps[arg.name])
            addresses.append(maps[arg.name].address)
            continue
        cell = _cell(arg, pointers)
        storage.append(cell)
        addresses.append(ctypes.addressof(cell))
    return storage, addresses


def _cell(arg: Arg, pointers: Mapping[str, int]) -> Any:
    """The C object of an argument that is passed by value."""
    if arg.kind in ("tensor", "timeline"):
        return ctypes.c_uint64(pointers[arg.name if arg.kind == "tensor" else POINTER])
    if arg.kind == "timeline_capacity":
        return ctypes.c_uint32(int(arg.value) * RECORD_BYTES // 2)  # the ring is half of the block
    if arg.kind == "timeline_stride":
        return ctypes.c_uint32(int(arg.value) - 1)  # a mask: CTAs with none of its bits record
    return _SCALARS[arg.kind](arg.value)


def _set_attributes(kernel: Kernel, plan: LaunchPlan) -> None:
    limit = kernel.device.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
    static = kernel.attribute("SHARED_SIZE_BYTES")
    if static + plan.smem_bytes > limit:
        raise CakeError(
            error(
                "lowering/launch-refused",
                "hardware",
                f"{plan.symbol} asks for {plan.smem_bytes} bytes of dynamic and {static} of static shared memory, "
                f"the device allows {limit} per block",
                contract="A block's shared memory fits the device's opt-in limit.",
            )
        )
    threads = kernel.attribute("MAX_THREADS_PER_BLOCK")
    if plan.threads > threads:
        raise CakeError(
            error(
                "lowering/launch-refused",
                "hardware",
                f"{plan.symbol} is launched with {plan.threads} threads; its registers allow {threads}",
                contract="A block's registers fit the SM.",
            )
        )
    if plan.smem_bytes:
        kernel.set_attribute("MAX_DYNAMIC_SHARED_SIZE_BYTES", plan.smem_bytes)
    if plan.cluster > PORTABLE_CLUSTER:
        kernel.set_attribute("NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1)


def _require_residency(prepared: PreparedLaunch) -> None:
    """A launch that can never be resident fails late and unclearly in the driver, so ask first."""
    plan = prepared.plan
    resident = prepared.max_clusters()
    unit = "cluster" if plan.cluster > 1 else "block"
    if resident == 0:
        raise CakeError(
            error(
                "lowering/launch-refused",
                "hardware",
                f"{plan.symbol}: the device cannot hold one {unit} of this launch",
                contract="At least one block or cluster fits the device.",
            )
        )
    if plan.cooperative and plan.grid > resident * plan.cluster:
        raise CakeError(
            error(
                "lowering/launch-refused",
                "hardware",
                f"{plan.symbol}: a cooperative grid of {plan.grid} blocks, {resident * plan.cluster} fit at once",
                contract="All blocks of a cooperative launch are resident at once.",
            )
        )


def _bad(message: str) -> CakeError:
    return CakeError(
        error(
            "lowering/bad-plan",
            "hardware",
            message,
            contract="A launch plan names only values the driver and the kernel accept.",
        )
    )
