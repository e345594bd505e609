"""k-means: assignment and update in turns until the centroids stay (Lloyd's algorithm), and one update alone.

An iteration is two calls that enqueue and return. Convergence is decided on the device: an update is given how far the centroids moved last
time, and a problem where that is at most the tolerance keeps its centroids. The host reads the distances `AHEAD` iterations late, to
know when to stop, so that it never waits for what it has just enqueued.
"""

from __future__ import annotations

import ctypes
import math
import random
from contextlib import nullcontext
from dataclasses import dataclass
from operator import index
from typing import Any, NoReturn

from cake_ir.fault import fault
from cake_mcp.arrays import Adapter, Facts, Torch, stream_number
from cake_mcp.assign import ASSIGN
from cake_mcp.fallback import log
from cake_mcp.operation import Operation, Spec, adapter_of, gpu
from cake_mcp.watch import watch

AHEAD = 2
"""Iterations that are enqueued while an older one's distance is read. More keep a slow host out of the way, and cost as many
iterations after the last that matters."""
WIDTH = 8
"""Features are a multiple of this: rows start on 16 bytes."""
NATIVE = ("bf16", "f16")

UPDATE = Operation(
    "kmeans_update",
    (Spec("x", "B N D"), Spec("label", "B N", "i32"), Spec("c", "B C D"), Spec("before", "B", "f32"), Spec("tol", "B", "f32")),
    (Spec("mean", "B C D"), Spec("mean_sq", "B C", "f32"), Spec("size", "B C", "i32"), Spec("shift", "B", "f32")),
)  # fmt: skip
INERTIA = Operation(
    "kmeans_inertia",
    (Spec("x", "B N D"), Spec("label", "B N", "i32"), Spec("c", "B C D")),
    (Spec("inertia", "B", "f32"),),
)


@dataclass(frozen=True)
class KMeans:
    """A clustering. Arrays are of the caller's library, without B if the points came without it.

    centroids: (B, K, D) in the element type that was computed with. labels: i32 (B, N), those of `centroids`. inertia: f32 (B,), the
    sum of squared distances of points from their centroids. n_iter: updates until the shift was at most the tolerance, else all that
    were allowed; an int, or a tuple with one per problem. shift: f32 (B,), how far the farthest centroid moved in the last of them.
    """

    centroids: Any
    labels: Any
    inertia: Any
    n_iter: int | tuple[int, ...]
    shift: Any


def kmeans(
    x: Any, n_clusters: int | None = None, *, init: Any = "random", max_iter: int = 100, tol: float = 1e-4, seed: int = 0,
    stream: Any = None, strict: bool = False,
) -> KMeans:  # fmt: skip
    """Lloyd's algorithm on one problem or a batch of problems.

    Args:
        x: points (N, D) or (B, N, D), a torch tensor or CuPy array, bf16 or f16. f32 and f64 are rounded first, D that is no multiple of 8
            is padded with zeros, arrays that are not contiguous are copied: log records `cake.fallback`.
        n_clusters: K; may be left out with an array as `init`.
        init: "random" (distinct points, chosen by `seed`), or the centroids to begin with, (K, D) or (B, K, D).
        max_iter: updates at most; 0 only assigns.
        tol: stop a problem when no centroid moved farther (Euclidean). Negative: never; then nothing waits for the device.
        seed: of the random choice; the same on every library and device.
        stream: a CUDA stream (integer or object); by default the current one of x's library.
        strict: raise instead of taking a fallback.

    Returns:
        See `KMeans`. A cluster that loses all its points keeps its centroid. Sums are added in no fixed order, so that runs may differ by
        the rounding of f32 sums.

    Raises:
        CakeError: `dispatch/...`, `lowering/...`; the message says what to do. A call cannot be captured in a CUDA graph unless
            `tol` is negative.
    """
    lead, device = _lead(x, "kmeans")
    limit, tolerance = _whole("max_iter", max_iter, 0), _distance(tol)
    where = lead.current_stream(device) if stream is None else stream_number(stream)
    with lead.on(where, device):
        points, features = _points(lead, x, strict)
        width = points.shape[-1]
        c = _start(lead, points, features, x.ndim, n_clusters, init, seed)
        done = _lloyd(lead, points, c, limit, tolerance, where, device, strict)
    if width != features:
        done = KMeans(lead.copied(done.centroids[..., :features]), done.labels, done.inertia, done.n_iter, done.shift)
    if x.ndim == 3:
        return done
    assert isinstance(done.n_iter, tuple)
    return KMeans(done.centroids[0], done.labels[0], done.inertia[0], done.n_iter[0], done.shift[0])


def kmeans_update(x: Any, labels: Any, c: Any, *, stream: Any = None, strict: bool = False) -> tuple[Any, Any, Any]:
    """New centroids from labels: the mean of each cluster's points.

    Args:
        x: points (N, D) or (B, N, D), bf16 or f16, as `kmeans` takes them.
        labels: i32 (N,) or (B, N). A point whose label is outside 0 .. K - 1 belongs to no cluster.
        c: centroids (K, D) or (B, K, D), of the dtype of x; an empty cluster keeps its own.
        stream, strict: as for `kmeans`.

    Returns:
        (centroids as c, sizes i32 (K,) or (B, K), the greatest distance that a centroid moved, f32, per problem).

    Raises:
        CakeError: `dispatch/...`, `lowering/...`.
    """
    lead, device = _lead(x, "kmeans_update")
    where = lead.current_stream(device) if stream is None else stream_number(stream)
    with lead.on(where, device):
        points, features = _points(lead, x, strict)
        old = _as_points(lead, _batched(lead, c, x.ndim), points)
        own = _batched(lead, labels, x.ndim, 1)
        before, tol = _full(lead, points, (points.shape[0],), math.inf), _full(lead, points, (points.shape[0],), 0.0)
        mean, _, size, shift = UPDATE((points, own, old, before, tol), (None,) * 4, None, strict)
        if points.shape[-1] != features:
            mean = lead.copied(mean[..., :features])
    return (mean, size, shift) if x.ndim == 3 else (mean[0], size[0], shift[0])


def _lloyd(lead: Adapter, x: Any, c: Any, max_iter: int, tol: float, where: int, device: int, strict: bool) -> KMeans:
    """The iterations. Buffers are allocated once; centroids alternate between two."""
    batch, n, _ = x.shape
    count = c.shape[1]
    f32, i32 = lead.native_dtype("f32"), lead.native_dtype("i32")

    def empty(shape: tuple[int, ...], dtype: Any) -> Any:
        return lead.empty(shape, dtype, x, device, None)

    labels, size = empty((batch, n), i32), empty((batch, count), i32)
    spare = [(empty(c.shape, x.dtype), empty((batch, count), f32)) for _ in range(2)]
    # rows of distances, on 16 bytes each: what an update writes, and what it reads of the one before
    moves = empty((2, -(-batch // 4) * 4), f32)
    limit = _full(lead, x, (batch,), tol if tol >= 0 else -math.inf)
    before = shift = _full(lead, x, (batch,), math.inf)
    c_sq = None
    seen: list[list[float]] = []
    i = 0
    device_of = gpu(device)
    # page-locked memory cannot be had while a graph is captured
    watching = watch(device_of, batch, AHEAD + 1) if tol >= 0 else nullcontext()
    with device_of.current(), watching as watched:
        while i < max_iter:
            ASSIGN((x, c, c_sq), (labels,), None, strict)
            shift = moves[i % 2, :batch]
            mean, mean_sq = spare[i % 2]
            UPDATE((x, labels, c, before, limit), (mean, mean_sq, size, shift), None, strict)
            c, c_sq, before = mean, mean_sq, shift
            i += 1
            if watched is None:
                continue
            watched.post(lead.pointer(shift), batch, where)
            if i > AHEAD:
                seen.append(watched.wait(batch))
                if max(seen[-1]) <= tol:
                    break
        while watched is not None and watched.read < watched.posted:
            seen.append(watched.wait(batch))
    # Where all had converged before the last assignment, its labels are already those of the centroids.
    if not (len(seen) > 1 and max(seen[-2]) <= tol):
        ASSIGN((x, c, c_sq), (labels,), None, strict)
    (inertia,) = INERTIA((x, labels, c), (None,), None, strict)
    n_iter = tuple(next((j + 1 for j, row in enumerate(seen) if row[b] <= tol), i) for b in range(batch))
    return KMeans(c, labels, inertia, n_iter, shift)


# ---- what the caller passes ------------------------------------------------------------------------------------------


def _lead(x: Any, what: str) -> tuple[Adapter, int]:
    """(library, device) of the points; raises CakeError for arrays whose library cannot be asked for memory."""
    lead = adapter_of(x)
    if not lead.allocates:
        _bad(f"{what} takes torch tensors and CuPy arrays, got one of {lead.name}", "dispatch/not-an-array")
    device = lead.device_of(x)
    if device < 0:
        _bad("x is in host memory; move it to the GPU first", "dispatch/not-on-gpu")
    if x.ndim not in (2, 3) or 0 in x.shape:
        _bad(f"x has shape {tuple(x.shape)}; pass points as (N, D) or (B, N, D)", "dispatch/rank-mismatch")
    return lead, device


def _facts(lead: Adapter, a: Any) -> tuple[Facts, int]:
    key, pointer = lead.view(a, 0)
    return lead.facts(key), pointer


def _fall(lead: Adapter, strict: bool, how: str, why: str, remedy: str) -> None:
    """Name a fallback, or refuse it. Raises CakeError `dispatch/strict`."""
    if strict:
        raise fault("dispatch/strict", f"{why}, and strict=True refuses a fallback; {remedy}",
                    contract="Arrays are served as they are, or by a fallback that the caller allows.")  # fmt: skip
    log("cake.fallback", family="kmeans", how=how, why=why, library=lead.name)


def _points(lead: Adapter, x: Any, strict: bool) -> tuple[Any, int]:
    """(points as the kernels take them: batched, 16-bit, row-major, features padded; features of the caller's). Once for all iterations."""
    if isinstance(lead, Torch):
        x = x.detach()  # there is no gradient
    facts, pointer = _facts(lead, x)
    features = x.shape[-1]
    if facts.dtype in ("f32", "f64"):
        kind = "bf16" if isinstance(lead, Torch) else "f16"  # CuPy has no arithmetic in bf16
        _fall(lead, strict, "cast", f"x is {facts.dtype}, which is rounded to {kind}", "pass bf16 or f16")
        x = _cast(lead, x, kind)
    elif facts.dtype not in NATIVE:
        _bad(f"x is {facts.dtype}; pass bf16 or f16", "dispatch/dtype-mismatch")
    if features % WIDTH:
        _fall(lead, strict, "pad", f"{features} features are no multiple of {WIDTH}", "pad the points with zeros")
        x = lead.padded(x, (*x.shape[:-1], -(-features // WIDTH) * WIDTH))
    elif not facts.contiguous or pointer % 16:
        _fall(
            lead,
            strict,
            "copy",
            "x is not contiguous or does not start on 16 bytes",
            "pass a contiguous, 16-byte aligned copy",
        )
        x = lead.copied(x)
    return (x if x.ndim == 3 else x[None]), features


def _batched(lead: Adapter, a: Any, ndim: int, less: int = 0) -> Any:
    """An array that goes with points of `ndim` dimensions and has `less` dimensions fewer, with its batch extent."""
    own = adapter_of(a)
    if not isinstance(own, type(lead)):
        _bad(
            f"an array is of {own.name}, the points are of {lead.name}; pass arrays of one library",
            "dispatch/not-an-array",
        )
    if a.ndim != ndim - less:
        shape = tuple(getattr(a, "shape", ()))
        _bad(
            f"an array has shape {shape}; with points of {ndim} dimensions it has {ndim - less}",
            "dispatch/rank-mismatch",
        )
    return a if ndim == 3 else a[None]


def _as_points(lead: Adapter, c: Any, points: Any) -> Any:
    """Centroids in the element type and width of the points, in memory of their own."""
    facts, _ = _facts(adapter_of(c), c)
    kind = _facts(lead, points)[0].dtype
    if facts.dtype not in (*NATIVE, "f32", "f64"):
        _bad(f"centroids are {facts.dtype}; pass them like x", "dispatch/dtype-mismatch")
    batch, _, width = points.shape
    if c.shape[0] != batch or c.shape[2] > width or c.shape[2] <= width - WIDTH:
        _bad(
            f"centroids have shape {tuple(c.shape)}; the points have B {batch} and D {width}",
            "dispatch/extent-mismatch",
        )
    if facts.dtype != kind:
        c = _cast(lead, c, kind)
    return lead.padded(c, (*c.shape[:-1], width)) if c.shape[2] != width else lead.copied(c)


def _start(lead: Adapter, points: Any, features: int, ndim: int, n_clusters: int | None, init: Any, seed: int) -> Any:
    """The first centroids, in memory of their own."""
    batch, n, _ = points.shape
    if not isinstance(init, str):
        c = _batched(lead, init, ndim)
        if n_clusters not in (None, c.shape[1]):
            _bad(f"n_clusters is {n_clusters}, init has {c.shape[1]} centroids; pass one of the two")
        if c.shape[2] != features or not c.shape[1]:
            _bad(f"init has shape {tuple(init.shape)}; the points have {features} features", "dispatch/extent-mismatch")
        return _as_points(lead, c, points)
    if init != "random":
        _bad(f'init is {init!r}; pass "random" or an array of centroids')
    count = _whole("n_clusters", n_clusters, 1, n)
    choose = random.Random(_whole("seed", seed, -math.inf))
    rows = [choose.sample(range(n), count) for _ in range(batch)]
    m = lead.module  # type: ignore[attr-defined]
    where = {"device": points.device} if isinstance(lead, Torch) else {}
    return points[m.arange(batch, **where)[:, None], m.asarray(rows, **where)]


def _whole(name: str, value: Any, least: float, most: float = math.inf) -> int:
    """A whole number of any library; raises CakeError `dispatch/bad-argument`."""
    try:
        found = index(value)
    except TypeError:
        found = None
    if found is None or not least <= found <= most:
        bounds = [f"at least {least}"] * (least > -math.inf) + [f"at most {most}"] * (most < math.inf)
        _bad(f"{name} is {value!r}; pass a whole number{' that is ' * bool(bounds)}{' and '.join(bounds)}")
    return found


def _distance(tol: Any) -> float:
    """tol as f32: host and device compare the same numbers."""
    try:
        found = float(tol)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if math.isnan(found):
        _bad(f"tol is {tol!r}; pass a distance")
    return ctypes.c_float(found).value


def _cast(lead: Adapter, a: Any, dtype: str) -> Any:
    native = lead.native_dtype(dtype)
    return a.to(native) if isinstance(lead, Torch) else a.astype(native)


def _full(lead: Adapter, like: Any, shape: tuple[int, ...], value: float) -> Any:
    f32 = lead.native_dtype("f32")
    if isinstance(lead, Torch):
        return like.new_full(shape, value, dtype=f32)
    return lead.module.full(shape, value, f32)  # type: ignore[attr-defined]


def _bad(message: str, rule: str = "dispatch/bad-argument") -> NoReturn:
    raise fault(rule, message, contract="Arguments of k-means: points, a number of clusters or centroids, limits.")
