"""From a faulty kernel to the job of a GPU worker, past the verifier. Runs without a GPU; the cubins are built here."""

from __future__ import annotations

import functools
import struct
from typing import Any

from cake_ir import bind, parse
from cake_ir.derive import derive
from corpus import contracts, jobs, kernels
from corpus.prepare import prepare
from lowering.compile import compile_cuda
from lowering.plan import Arg, LaunchPlan
from tests.faults.kernels import FRAME, PRELUDE, Changed, Cuda

TARGET = "sm_90a"
SMS = 132
SHAPE = {"M": 132, "D": 256}
LAUNCH_S = 1.0
JOB_S = 60.0
NOTHING = bytes([0xFF]) * 16
"""Not an instruction: 128 ones."""


def common(device: int = 0) -> dict[str, Any]:
    """Fields of every job: a quick start, short waits, one distribution, short timing."""
    return {
        "device": device, "use_torch": False, "timeout_s": JOB_S, "launch_timeout_s": LAUNCH_S, "baselines": (),
        "samples": 7, "distributions": ("normal",),
    }  # fmt: skip


@functools.cache
def right() -> dict[str, Any]:
    """The check of a right kernel, asked after every fault."""
    k = next(k for k in kernels() if k.name == "rmsnorm")
    shapes = [{"M": 3, "D": 256}, {"M": 5, "D": 1000}]
    made, _ = prepare(
        k.text(), k.contract, "check", shapes, target=TARGET, bindings=k.bindings, name=k.name, **common()
    )
    return made.model_dump(mode="json")


def job(kernel: Cuda | Changed) -> dict[str, Any]:
    """{"job", "named", "where"}: the job, the CPU worker's naming of a corpus program (or empty), and its `where` job (None
    where it cannot be built)."""
    if isinstance(kernel, Cuda):
        return {"job": _cuda(kernel).model_dump(mode="json"), "named": {}, "where": None}
    return _changed(kernel)


def _cuda(kernel: Cuda) -> jobs.Job:
    spec = contracts()["rmsnorm"]
    cubin = _cubin(kernel)
    plans = [_plan(cubin, kernel.plan)]
    cubins = [cubin]
    if kernel.after_right:
        cubins.insert(0, _cubin(Cuda("right", "fault")))
        plans.insert(0, _plan(cubins[0], {}))
    launch = jobs.Launch(shape=SHAPE, plans=tuple(p.to_json() for p in plans), dtypes={"DT": "bf16"})
    more = {**common(), "kernel": kernel.name, "target": kernel.target}
    if kernel.job == "check":
        return jobs.job("check", spec, [launch], cubins, **more)
    return jobs.job("bench", spec, [launch], cubins, modes=(kernel.job,), **more)


def _plan(cubin: bytes, changed: dict[str, Any]) -> LaunchPlan:
    import hashlib

    args = (*(Arg("tensor", n) for n in ("x", "gain", "y")), *(Arg("i32", value=SHAPE[d]) for d in ("M", "D")))
    fields: dict[str, Any] = {
        "symbol": "faulty",
        "grid": SMS,
        "cluster": 1,
        "threads": 128,
        "smem_bytes": 0,
        "pdl": False,
    }
    fields |= {"cooperative": False, **changed}
    return LaunchPlan(cubin_sha256=hashlib.sha256(cubin).hexdigest(), args=args, **fields)


def _cubin(kernel: Cuda) -> bytes:
    source = PRELUDE + kernel.extra + FRAME % {"bounds": kernel.bounds, "body": kernel.body}
    built = compile_cuda(source, kernel.target).cubin
    if kernel.cubin == "truncated":
        return built[: len(built) // 2]
    return spoil(built) if kernel.cubin == "bad opcode" else built


def spoil(cubin: bytes) -> bytes:
    """The cubin with its kernel's first instruction replaced by one that does not exist. ELF64, little-endian: section
    headers at e_shoff, names in section e_shstrndx (System V ABI)."""
    (at,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", cubin, at + i * size) for i in range(count)]
    for name, _, _, _, offset, length in headers:
        begin = headers[names][4] + name
        if cubin[begin : cubin.index(b"\0", begin)] == b".text.faulty":
            assert length >= len(NOTHING)
            return cubin[:offset] + NOTHING + cubin[offset + len(NOTHING) :]
    raise ValueError("the cubin has no code of the kernel")


def _changed(kernel: Changed) -> dict[str, Any]:
    from cake_ir.diagnostics import CakeError

    k = next(k for k in kernels() if k.name == kernel.kernel)
    text = changed_text(kernel)
    fields: dict[str, Any] = {"target": TARGET, "bindings": k.bindings, "kernel": k.kernel, "name": kernel.name}
    made, skipped = prepare(text, k.contract, "check", [kernel.shape], **fields, **common())
    assert made.launches, skipped
    try:
        where = prepare(text, k.contract, "where", [kernel.shape], **fields, **common())[0].model_dump(mode="json")  # type: ignore[arg-type]
    except (CakeError, ValueError):
        where = None
    named = {"text": text, "bindings": dict(k.bindings), "target": TARGET, "kernel": k.kernel, "contract": k.contract}
    return {"job": made.model_dump(mode="json"), "named": {**named, "contracts_dir": None}, "where": where}


def changed_text(kernel: Changed) -> str:
    """The corpus kernel's text with the change; ValueError when it no longer has the place."""
    text = next(k for k in kernels() if k.name == kernel.kernel).text()
    if kernel.old not in text:
        raise ValueError(f"{kernel.kernel} has no {kernel.old.strip()!r}")
    return text.replace(kernel.old, kernel.new)


def stands(kernel: Changed) -> Any:
    """What the order reading says of the changed kernel at its shape (`analyses.order.stand.Standing`)."""
    from analyses.order.stand import stand
    from corpus.signature import solve_dims

    k = next(k for k in kernels() if k.name == kernel.kernel)
    file = parse(changed_text(kernel)).file
    assert file is not None
    bound = bind(file, dict(k.bindings), TARGET, k.kernel).bound
    assert bound is not None
    return stand(bound, derive(bound), solve_dims(bound, contracts()[k.contract], kernel.shape), SMS)
