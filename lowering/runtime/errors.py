"""CUDA driver results as `CakeError`s with stable rules, and the lazily imported driver module.

`lowering/no-gpu`            no driver, or no device
`lowering/out-of-memory`     an allocation was refused
`lowering/device-fault`      the kernel broke the context; the process must end
`lowering/launch-refused`    the driver refused the launch's numbers
`lowering/cuda-error`        anything else, by its CUDA name
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

from cake_ir.fault import CakeError, fault

STICKY = frozenset(
    "CUDA_ERROR_" + name
    for name in (
        "ILLEGAL_ADDRESS", "LAUNCH_FAILED", "LAUNCH_TIMEOUT", "MISALIGNED_ADDRESS", "ILLEGAL_INSTRUCTION",
        "INVALID_ADDRESS_SPACE", "INVALID_PC", "HARDWARE_STACK_ERROR", "ASSERT", "ECC_UNCORRECTABLE",
        "TENSOR_MEMORY_LEAK", "CONTAINED", "UNKNOWN",
    )
)  # fmt: skip
"""Errors after which every later call in the context fails."""

_REFUSED = frozenset(
    "CUDA_ERROR_" + name
    for name in ("INVALID_VALUE", "LAUNCH_OUT_OF_RESOURCES", "INVALID_CLUSTER_SIZE", "COOPERATIVE_LAUNCH_TOO_LARGE")
)


@cache
def driver() -> Any:
    """The `cuda.bindings.driver` module, initialised; raises CakeError `lowering/no-gpu`."""
    try:
        module: Any = importlib.import_module("cuda.bindings.driver")
    except ImportError as exc:
        raise no_gpu(f"the CUDA bindings are not installed ({exc})") from None
    try:
        (status,) = module.cuInit(0)
    except RuntimeError:  # the bindings' own class for a missing library derives from it
        raise no_gpu("no NVIDIA driver is installed") from None
    if status != module.CUresult.CUDA_SUCCESS:
        raise no_gpu(f"the NVIDIA driver cannot be used ({name_of(module, status)})")
    return module


def available() -> bool:
    """Whether a driver and at least one device answer."""
    try:
        cu = driver()
        status, count = cu.cuDeviceGetCount()
    except CakeError:
        return False
    return status == cu.CUresult.CUDA_SUCCESS and count > 0


def check(result: tuple[Any, ...], what: str) -> Any:
    """The value(s) of a driver call, or a CakeError. `what` says in words what was attempted."""
    if result[0] != 0:
        raise cuda_error(result[0], what)
    if len(result) == 1:
        return None
    return result[1] if len(result) == 2 else result[1:]


def cuda_error(status: Any, what: str) -> CakeError:
    """The CakeError of a failed driver call."""
    return classified(name_of(driver(), status), what)


def classified(name: str, what: str) -> CakeError:
    """The CakeError of the CUDA error `name`. `what` says in words what was attempted; refused launches begin with "launch"."""
    message = f"{what}: {name}"
    if name in STICKY:
        rule, contract = "lowering/device-fault", "A verified kernel runs to its end without a device fault."
        message += "; the context is lost and this process cannot use the GPU any more"
    elif name == "CUDA_ERROR_OUT_OF_MEMORY":
        rule, contract = "lowering/out-of-memory", "Tensors, guard bands and workspaces fit device memory."
    elif name == "CUDA_ERROR_NO_DEVICE":
        return no_gpu(what)
    elif name in _REFUSED and what.startswith("launch"):
        rule, contract = "lowering/launch-refused", "The launch's grid, cluster, threads and shared memory are legal."
    elif name in ("CUDA_ERROR_NO_BINARY_FOR_GPU", "CUDA_ERROR_INVALID_IMAGE", "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"):
        rule, contract = "lowering/wrong-architecture", "A cubin runs on exactly the architecture it was built for."
    else:
        rule, contract = "lowering/cuda-error", "Driver calls succeed."
    return fault(rule, message, contract=contract)


def no_gpu(reason: str) -> CakeError:
    """The error for a machine without a usable GPU."""
    return fault(
        "lowering/no-gpu", f"no GPU is available: {reason}",
        contract="Running and timing kernels needs an NVIDIA GPU and driver; everything else works without one.",
    )  # fmt: skip


def name_of(cu: Any, status: Any) -> str:
    """CUDA's own name of a result code."""
    try:
        return cu.CUresult(int(status)).name
    except ValueError:
        return f"CUDA error {int(status)}"
