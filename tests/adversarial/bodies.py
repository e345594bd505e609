"""What the CUDA fixtures do, as Python over host memory: one function per cheat, by name.

A body returns the share of the work it did (None: all of it); the machine lets that much time go by.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from corpus.arrays import POISON_BYTES, Math, bits, numpy_dtype
from corpus.check import perfect
from corpus.contract import Case

if TYPE_CHECKING:
    from tests.adversarial.machine import Call

Body = Callable[["Call"], float | None]
BODIES: dict[str, Body] = {}
IDLE = 0.002
"""The share of work of a launch that returns at once."""


def body(f: Body) -> Body:
    """Register under the function's name."""
    BODIES[f.__name__] = f
    return f


def right(k: Call, **replaced: np.ndarray) -> np.ndarray:
    """What the output should be, flat; with some inputs replaced, what it would be for those."""
    found, _ = perfect(k.contract, Case(k.shape, ""), {**k.inputs, **replaced})
    return found[k.contract.outputs[0].name].reshape(-1)


def other(k: Call, values: np.ndarray) -> np.ndarray:
    """The least wrong values: the last bit flipped, or the next label."""
    if k.contract.name == "kmeans_assign":
        return (values + 1) % k.shape["C"]
    return (bits(values) ^ 1).view(values.dtype)


def bf16(values: np.ndarray) -> np.ndarray:
    """Rounded to bf16 and back."""
    return values.astype(numpy_dtype("bf16")).astype(np.float32)


def holds(k: Call, pattern: int) -> np.ndarray:
    """Which output elements hold a byte pattern."""
    raw = bits(k.out)
    return raw == np.frombuffer(bytes([pattern]) * raw.itemsize, raw.dtype)[0]


# ---- wrong in every launch -----------------------------------------------------------------------------------------


def right_kernel(k: Call) -> None:
    """No cheat."""
    k.out[:] = right(k)


BODIES["right"] = right_kernel


@body
def writes_nothing(k: Call) -> float:
    return IDLE


@body
def first_tile_only(k: Call) -> None:
    k.out[:64] = right(k)[:64]


@body
def zeros(k: Call) -> None:
    k.out[:] = 0


@body
def copies_input(k: Call) -> None:
    raw = bits(k.first) if k.out.dtype.kind == "i" else k.first
    k.out[:] = np.resize(raw, k.out.size).astype(k.out.dtype)


@body
def skips_some(k: Call) -> None:
    written = np.arange(k.out.size) % 97 != 5
    k.out[written] = right(k)[written]


@body
def off_by_one(k: Call) -> None:
    k.out[:] = np.roll(right(k), -1)


@body
def next_label(k: Call) -> None:
    k.out[:] = other(k, right(k))


@body
def swaps_rows(k: Call) -> None:
    rows = right(k).reshape(k.tensors[k.contract.outputs[0].name].shape)
    if k.contract.name == "kmeans_assign":
        rows = rows.reshape(-1, 1)
    order = np.arange(len(rows)) ^ 1
    k.out[:] = rows[np.where(order < len(rows), order, np.arange(len(rows)))].reshape(-1)


@body
def transposes_squares(k: Call) -> None:
    shape = k.tensors[k.contract.outputs[0].name].shape
    value = right(k).reshape(shape)
    k.out[:] = (value.T if len(set(shape)) == 1 else value).reshape(-1)


@body
def wrong_at_one_shape(k: Call) -> None:
    k.out[:] = right(k)
    edge = {"gemm_bf16": ("M", 129), "kmeans_assign": ("N", 129), "rmsnorm": ("D", 1000), "softmax": ("N", 1028)}
    dim, extent = edge[k.contract.name]
    if k.shape[dim] == extent:
        k.out[-1] = k.out[0]


@body
def bf16_accumulation(k: Call) -> None:
    t = {n: a.astype(np.float32) for n, a in k.inputs.items()}
    if k.contract.name == "gemm_bf16":
        total = np.zeros((k.shape["M"], k.shape["N"]), np.float32)
        for j in range(k.shape["K"]):
            total = bf16(total + t["a"][:, j, None] * t["b"][None, :, j])
        k.out[:] = total.reshape(-1).astype(k.out.dtype)
    elif k.contract.name == "kmeans_assign":
        scores = bf16(t["c_sq"][:, None, :] - 2.0 * np.matmul(t["x"], np.swapaxes(t["c"], 1, 2)))
        k.out[:] = np.argmin(scores, axis=-1).reshape(-1)
    else:
        top = np.max(t["x"], axis=-1, keepdims=True)
        with np.errstate(all="ignore"):
            terms = np.exp(t["x"] - top) if k.contract.name == "softmax" else t["x"] ** 2
            total = np.zeros(len(terms), np.float32)
            for j in range(terms.shape[1]):
                total = bf16(total + terms[:, j])
            if k.contract.name == "softmax":
                value = terms / total[:, None]
            else:
                value = t["x"] / np.sqrt(total / terms.shape[1] + 2.0**-20)[:, None] * t["gain"]
            k.out[:] = value.reshape(-1).astype(k.out.dtype)


@body
def skips_the_tail(k: Call) -> None:
    first, second = list(k.inputs)[:2]
    cut = {n: k.inputs[n].copy() for n in (first, second)}
    for a in cut.values():
        a[..., a.shape[-1] // 64 * 64 :] = 0
    k.out[:] = right(k, **cut)


@body
def ignores_an_operand(k: Call) -> None:
    name, fill = {"gemm_bf16": ("b", 1), "kmeans_assign": ("c_sq", 0), "rmsnorm": ("gain", 1)}[k.contract.name]
    k.out[:] = right(k, **{name: np.full_like(k.inputs[name], fill)})


@body
def skips_all_products(k: Call) -> None:
    name = next(iter(k.inputs))
    k.out[:] = right(k, **{name: np.zeros_like(k.inputs[name])})


@body
def nan_where_masked(k: Call) -> None:
    k.out[:] = right(k)
    x = k.inputs["x"]
    k.tensors["y"][np.isneginf(x).all(axis=-1)] = np.nan


@body
def nan_to_zero(k: Call) -> None:
    value = right(k)
    k.out[:] = np.where(np.isnan(value), 0, value)


@body
def clamps_infinity(k: Call) -> None:
    value = right(k)
    raw = bits(value)
    k.out[:] = np.where(np.isinf(value), raw - 1, raw).astype(raw.dtype).view(value.dtype)


@body
def last_of_ties(k: Call) -> None:
    x, c = Math().f64(k.inputs["x"]), Math().f64(k.inputs["c"])
    score = k.inputs["c_sq"].astype(np.float64)[:, None, :] - 2.0 * np.matmul(x, np.swapaxes(c, 1, 2))
    k.out[:] = (score.shape[-1] - 1 - np.argmin(score[..., ::-1], axis=-1)).reshape(-1)


# ---- memory that is not theirs -------------------------------------------------------------------------------------


@body
def mutates_input(k: Call) -> None:
    k.out[:] = right(k)
    k.first.view(np.uint8)[0] ^= 1


@body
def mutates_and_restores(k: Call) -> None:
    k.out[:] = right(k)
    raw = k.first.view(np.uint8)
    if k.launch:
        raw[2 * ((k.launch - 1) % 4)] ^= 1
    raw[2 * (k.launch % 4)] ^= 1


@body
def past_the_end(k: Call) -> None:
    k.out[:] = right(k)
    k.beside_output(k.out.size, 1)[:] = 0


@body
def row_past_the_end(k: Call) -> None:
    k.out[:] = right(k)
    k.beside_output(k.out.size, k.tensors[k.contract.outputs[0].name].shape[-1])[:] = 0


@body
def before_the_start(k: Call) -> None:
    k.out[:] = right(k)
    k.beside_output(-1, 1)[:] = 0


# ---- otherwise from launch to launch -------------------------------------------------------------------------------


@body
def first_call_only(k: Call) -> float:
    if k.launch:
        return IDLE
    k.out[:] = right(k)
    return 1.0


def spoil_one(k: Call, i: int) -> None:
    """Element i goes wrong: zero, or one where it was zero."""
    k.out[i] = 1 if k.out[i] == 0 else 0


@body
def right_for_a_while(k: Call) -> None:
    k.out[:] = right(k)
    if k.launch >= 4:
        spoil_one(k, k.out.size // 2)


@body
def reads_output(k: Call) -> None:
    wanted = holds(k, POISON_BYTES[0])
    value = right(k)
    wanted[1::2] = True
    k.out[:] = np.where(wanted, value, other(k, value))


@body
def leaves_what_it_likes(k: Call) -> None:
    written = holds(k, POISON_BYTES[1])
    written[np.arange(k.out.size) % 5 != 0] = True
    k.out[written] = right(k)[written]


@body
def sparse_race(k: Call) -> None:
    value = right(k)
    hit = np.random.Generator(np.random.PCG64(k.launch)).random(value.size) < 1e-4
    k.out[:] = np.where(hit, other(k, value), value)


@body
def flaky(k: Call) -> None:
    value = right(k)
    k.out[:] = value
    if np.random.Generator(np.random.PCG64(k.launch)).random() < 0.25:
        k.out[0] = other(k, value)[0]


@body
def rare(k: Call) -> None:
    key = tuple(a.tobytes() for a in k.inputs.values())
    if key not in k.kept:  # only so that hundreds of launches take no time here
        k.kept[key] = right(k)
    value = k.kept[key]
    k.out[:] = value
    if k.launch % 200 == 199:
        k.out[-1] = other(k, value)[-1]


# ---- otherwise while timed -----------------------------------------------------------------------------------------


@body
def stops_after_the_check(k: Call) -> float:
    if k.launch >= 2:
        return IDLE
    k.out[:] = right(k)
    return 1.0


@body
def wakes_for_the_timing(k: Call) -> float:
    if k.launch < 2:
        return IDLE
    k.out[:] = right(k)
    return 1.0


@body
def hundredth_of_the_work(k: Call) -> float:
    value = right(k)
    step = 1 if k.launch < 3 else 100
    k.out[::step] = value[::step]
    return 1.0 / step


@body
def decays(k: Call) -> None:
    k.out[:] = right(k)
    if k.launch > 40:
        spoil_one(k, -1)


@body
def past_the_end_when_timed(k: Call) -> None:
    k.out[:] = right(k)
    if k.launch >= 4:
        k.beside_output(k.out.size, 1)[:] = 0


@body
def mutates_input_when_timed(k: Call) -> None:
    k.out[:] = right(k)
    if k.launch >= 4:
        raw = k.first.view(np.uint8)
        raw[-8 * k.first.itemsize :: k.first.itemsize] |= 1


@body
def works_once(k: Call) -> float:
    todo = holds(k, POISON_BYTES[0]) | holds(k, POISON_BYTES[1])
    if not todo.any():
        return IDLE
    k.out[todo] = right(k)[todo]
    return 1.0


def cached(k: Call, key: Any) -> float:
    """Copy what is kept under the key, or compute and keep it."""
    if key in k.kept:
        k.out[:] = k.kept[key]
        return IDLE
    k.kept[key] = right(k)
    k.out[:] = k.kept[key]
    return 1.0


@body
def stale_by_pointer(k: Call) -> float:
    return cached(k, k.first.ctypes.data)


@body
def stale_by_bytes(k: Call) -> float:
    return cached(k, tuple(a.tobytes() for a in k.inputs.values()))


@body
def twice_the_work(k: Call) -> float:
    k.out[:] = right(k)
    return 2.0
