"""The value reading on whole kernels: right numbers under every kind of schedule, in time."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from analyses import ValueFault, interpret
from tests.analyses.value_programs import (
    BF16,
    E4M3,
    KERNELS,
    SKETCHES,
    Maker,
    Program,
    attention,
    bind_text,
    edited,
    f64,
    gemm,
    kda,
    kmeans,
    rmsnorm,
    sigmoid,
    softmax,
    tinygemm,
)  # fmt: skip

PLAIN = ("greedy", "eager", "newest", "random:1")
PROGRAMS: dict[str, tuple[Program, tuple[str, ...]]] = {
    "gemm sm_90a": (
        gemm(SKETCHES / "01_gemm_sm90.cake", 520, 264, 328, BN=128, STAGES=2),
        ("starve:math.0", "starve:producer", "late:tma", "late:wgmma", "late:store"),
    ),
    "gemm sm_90a, BN 256, ragged": (gemm(KERNELS / "gemm_sm90.cake", 136, 264, 72), ("starve:math.1",)),
    "k-means": (
        kmeans(SKETCHES / "02_kmeans_sm90.cake", 2, 200, 300, 72, STAGES=2),
        ("starve:math.1", "starve:producer", "late:tma"),
    ),
    "k-means, corpus": (kmeans(KERNELS / "kmeans_assign.cake", 1, 65, 257, 128), ("late:wgmma",)),
    "gemm sm_80": (gemm(KERNELS / "gemm_sm80.cake", 136, 264, 328, STAGES=3), ("starve:math.3", "late:cp_async")),
    "gemm sm_100a, pair": (
        gemm(KERNELS / "gemm_sm100.cake", 520, 136, 328, CG=2, BN=128, STAGES=2),
        ("starve:epi", "late:tcgen05", "late:store", "late:tma"),
    ),
    "gemm sm_100a, one CTA": (
        gemm(KERNELS / "gemm_sm100.cake", 136, 264, 72, CG=1, BN=256, STAGES=3),
        ("starve:epi", "starve:producer"),
    ),
    "rmsnorm": (rmsnorm(KERNELS / "rmsnorm.cake", 9, 520), ()),
    "rmsnorm, sketch": (rmsnorm(SKETCHES / "05_rows.cake", 7, 1000, DMAX=1024, ROWS=2), ()),
    "softmax": (softmax(KERNELS / "softmax.cake", 3, 2052), ("starve:rows.0",)),
    "softmax, sketch": (softmax(SKETCHES / "05_rows.cake", 2, 100), ("starve:rows.7",)),
    "attention, causal": (attention(True), ("starve:math.0", "starve:math.1", "late:tma")),
    "attention": (attention(False), ("starve:math.0", "starve:producer", "late:wgmma")),
    "kda prefill": (kda("kda_prefill"), ("starve:math.0", "starve:math.3")),
    "kda decode": (kda("kda_decode"), ()),
    "tinygemm": (tinygemm(), ("starve:load_x", "starve:math.0", "starve:load_w", "late:tma")),
}
CASES = [(name, s) for name, (_, more) in PROGRAMS.items() for s in (*PLAIN, *more)]
BOUND: dict[str, Any] = {}


@pytest.mark.parametrize(("name", "schedule"), CASES, ids=[f"{n}-{s}" for n, s in CASES])
def test_kernel_is_right(name: str, schedule: str) -> None:
    program = PROGRAMS[name][0]
    if name not in BOUND:
        BOUND[name] = program.bound()
    out = interpret(BOUND[name], program.tensors, program.scalars, schedule=schedule)
    assert program.wrong(out) == 0


def test_the_number_of_sms_changes_only_who_works() -> None:
    program = PROGRAMS["gemm sm_90a"][0]
    bound = program.bound()
    results = [interpret(bound, program.tensors, sms=n)["d"].view(np.uint16) for n in (2, 4, 6)]
    assert all(np.array_equal(results[0], r) for r in results[1:])


def test_results_are_the_same_bits_each_time() -> None:
    program = PROGRAMS["gemm sm_80"][0]
    bound = program.bound()
    results = {interpret(bound, program.tensors, schedule=s)["d"].tobytes() for s in ("random:7", "random:7", "greedy")}
    assert len(results) == 1


def test_inputs_are_left_alone() -> None:
    program = kda("kda_decode")
    before = {n: a.tobytes() for n, a in program.tensors.items()}
    interpret(program.bound(), program.tensors, program.scalars)
    assert {n: a.tobytes() for n, a in program.tensors.items()} == before


def test_boundary_shapes_are_fast() -> None:
    program = PROGRAMS["k-means"][0]
    bound = program.bound()
    interpret(bound, program.tensors)
    start = time.process_time()
    interpret(bound, program.tensors)
    assert time.process_time() - start < 20.0


def test_knn_in_two_kernels() -> None:
    make, (n, m, d, parts, k) = Maker(), (70, 300, 64, 2, 10)
    path = SKETCHES / "08_knn_sm90.cake"
    q, db = make.bf16(n, d), make.bf16(m, d)
    sq = (f64(db) ** 2).sum(-1).astype(np.float32)
    want = np.argsort(f64(sq)[None, :] - 2 * f64(q) @ f64(db).T, axis=1, kind="stable")[:, :k]
    first = bind_text(path.read_text(), {"D": 64}, "knn_partial")
    second = bind_text(path.read_text(), {}, "knn_merge")
    for schedule in ("greedy", "starve:math.1"):
        part = interpret(first, {"q": q, "db": db, "db_sq": sq}, {"P": parts}, schedule=schedule)
        assert np.array_equal(interpret(second, part, schedule="greedy")["nearest"], want)


def test_moe_in_two_kernels() -> None:
    rng = np.random.default_rng(3)
    path = SKETCHES / "09_moe_fp8_sm90.cake"
    counts, k, i, t = [130, 0, 70], 256, 128, 50
    offsets = np.cumsum([0, *counts]).astype(np.int32)
    rows, experts = int(offsets[-1]), len(counts)
    x = rng.standard_normal((rows, k)).astype(E4M3)
    sx = rng.uniform(0.5, 1, (k // 128, rows)).astype(np.float32)
    w1 = (rng.standard_normal((experts, 2 * i, k)) / 2).astype(E4M3)
    s1 = rng.uniform(0.05, 0.1, (experts, 2 * i // 128, k // 128)).astype(np.float32)
    w2 = (rng.standard_normal((experts, k, i)) / 2).astype(E4M3)
    s2 = rng.uniform(0.05, 0.1, (experts, k // 128, i // 128)).astype(np.float32)
    token = rng.integers(0, t, rows).astype(np.int32)
    token[5] = -1
    weight = rng.uniform(0, 1, rows).astype(np.float32)

    def wide(w: np.ndarray, s: np.ndarray) -> np.ndarray:
        return f64(w) * np.repeat(np.repeat(f64(s), 128, 1), 128, 2)

    up = np.zeros((rows, i))
    for e in range(experts):
        part = slice(offsets[e], offsets[e + 1])
        y = (f64(x) * np.repeat(f64(sx), 128, 0).T)[part] @ wide(w1, s1)[e].T
        up[part] = y[:, :i] * sigmoid(y[:, :i]) * y[:, i:]
    mid = interpret(
        bind_text(path.read_text(), {}, "moe_up"),
        {"x": x, "sx": sx, "w": w1, "sw": s1, "offsets": offsets},
        schedule="starve:math.0",
    )
    h = f64(mid["h"]) * np.repeat(f64(mid["sh"]), 128, 0).T
    # the requantised row keeps 4 bits: half a step of the row's largest value
    assert (np.abs(h - up) <= np.abs(up).max(1, keepdims=True) / 16).all()
    want = np.zeros((t, k))
    for e in range(experts):
        for r in range(offsets[e], offsets[e + 1]):
            if token[r] >= 0:
                want[token[r]] += wide(w2, s2)[e] @ h[r] * f64(weight)[r]
    tensors = {"h": mid["h"], "sh": mid["sh"], "w": w2, "sw": s2, "offsets": offsets, "token": token, "weight": weight}
    out = interpret(
        bind_text(path.read_text(), {}, "moe_down"), tensors | {"out": np.zeros((t, k), BF16)}, schedule="late:store"
    )
    assert np.abs(f64(out["out"]) - want).max() < 0.02


def test_packed_kmeans_finds_the_nearest() -> None:
    program = kmeans(KERNELS / "kmeans_packed.cake", 1, 300, 300, 72)
    out = interpret(program.bound(), program.tensors)["label"]
    x, c, sq = (f64(program.tensors[n]) for n in ("x", "c", "c_sq"))
    score = sq[:, None, :] - 2 * np.einsum("bnd,bcd->bnc", x, c)
    excess = np.take_along_axis(score, out[..., None].astype(int), -1)[..., 0] - score.min(-1)
    assert excess.max() < 0.01  # the index takes five bits of the score


def test_launch_faults_name_the_argument() -> None:
    program = kmeans(SKETCHES / "02_kmeans_sm90.cake", 1, 64, 64, 72)
    bound = program.bound()
    for tensors, scalars, text in (
        ({k: v for k, v in program.tensors.items() if k != "c"}, {}, "tensor c .In. is missing"),
        (program.tensors | {"c_sq": program.tensors["c_sq"][:, 1:]}, {}, "C is 63 here and 64 elsewhere"),
        (program.tensors | {"extra": program.tensors["x"]}, {}, "no tensor extra"),
        (program.tensors, {"eps": 1.0}, "no scalar eps"),
        (program.tensors | {"c_sq": program.tensors["c_sq"].astype(np.float64)}, {}, "dtype f32"),
    ):
        with pytest.raises(ValueFault, match=text):
            interpret(bound, tensors, scalars)
    with pytest.raises(ValueFault, match="where"):
        interpret(bound, kmeans(program.path, 1, 64, 64, 76).tensors)
    for schedule in ("fast", "random", "random:x", "late:dma", "starve:nobody"):
        with pytest.raises(ValueFault, match=r"unknown|needs an integer"):
            interpret(bound, program.tensors, schedule=schedule)


def test_edit_helper_refuses_absent_text() -> None:
    with pytest.raises(AssertionError):
        edited(SKETCHES / "05_rows.cake", [("no such text", "")])
