"""The numerical gate: launches under load and on fewer multiprocessors, float sums in any order, alignment, edge shapes,
declared specials, too little precision, and who wrote the wrong element."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from analyses import interpret
from cake_ir import bind, parse
from cake_ir.bound import BoundKernel
from cake_ir.diagnostics import CakeError
from corpus import jobs, kernels
from corpus.arrays import Math
from corpus.blame import blame_job
from corpus.check import CaseResult, check_cpu, float_sums, perfect
from corpus.compare import judge, misplaced
from corpus.contract import Case, Contract, Expected, contracts
from corpus.distributions import rng, segments
from corpus.edges import edge_shapes, tile_sizes
from corpus.gpu_buffers import Env, Load
from corpus.gpu_check import Trial, allocate, run_check
from lowering.plan import BASE_ALIGNMENT
from tests.corpus.fake_device import FakeDevice, at, env_for
from tests.corpus.test_gpu_jobs import CUBIN, GEMM, PLAN, SHAPE, right, tensors
from tests.test_corpus_kernels import SMALL
from tests.test_sketches import RUNS, bound_of

ALL = contracts()
BF16 = np.dtype(ml_dtypes.bfloat16)
Body = Callable[[FakeDevice, Mapping[str, int]], None]


def check(env: Env, distributions: tuple[str, ...] = ("normal",), **more: Any) -> Any:
    launch = jobs.Launch(shape=SHAPE, plans=(PLAN,), **more)
    job = jobs.job("check", GEMM, [launch], [CUBIN], kernel="k", distributions=distributions)
    return run_check(env, job, GEMM, 5, lambda *a: None)


# ---- launches ------------------------------------------------------------------------------------------------------


def loaded(body: Body) -> tuple[Env, dict[str, bool]]:
    """A machine with a second stream; `busy` tells the kernel that it runs under load."""
    state = {"busy": False}

    def under_load(launch: Callable[[int], None], stream: int) -> None:
        state["busy"] = True
        launch(stream)
        state["busy"] = False

    env = env_for(body)
    env.under_load = under_load
    return env, state


def test_one_of_the_runs_is_under_load_and_a_race_that_shows_only_there_is_found() -> None:
    env, state = loaded(right)
    assert check(env).cases[0].schedules == ("plain", "plain", "under load")

    def racy(d: FakeDevice, p: Mapping[str, int]) -> None:
        right(d, p)
        if state["busy"]:
            tensors(p)["d"][2, 3] = 7

    env, state = loaded(racy)
    r = check(env)
    assert not r.passed and (r.cases[0].cause, r.cases[0].at) == ("repeat", {"tensor": "d", "index": [2, 3]})
    assert r.cases[0].message.startswith("launched under load: run 3 gives another result: d[2, 3] is ")


FEWER = {"fewer": {"sms": 2, "plans": ({**PLAN, "grid": 2},)}}


def gridded(body: Callable[[int, FakeDevice, Mapping[str, int]], None]) -> Env:
    """A machine whose kernel knows its grid."""
    device = FakeDevice()
    return Env(device, None, lambda cubin, plan, pointers: lambda stream: body(plan["grid"], device, pointers))


def test_a_grid_for_fewer_multiprocessors_is_judged_by_the_contract() -> None:
    good = check(gridded(lambda grid, d, p: right(d, p)), **FEWER)
    assert good.passed and good.cases[0].schedules == ("plain", "plain", "plain", "for 2 SMs")

    def forgets(grid: int, d: FakeDevice, p: Mapping[str, int]) -> None:
        right(d, p)
        if grid == 2:
            tensors(p)["d"][16, 5] = 9

    r = check(gridded(forgets), **FEWER)
    assert not r.passed and r.cases[0].at == {"tensor": "d", "index": [16, 5], "sms": 2}
    assert r.cases[0].message.startswith("launched for 2 SMs: 1 of 408 elements are wrong")


def test_only_declared_float_sums_may_differ_between_runs_and_only_within_the_tolerance() -> None:
    flips = {"n": 0}

    def signs(d: FakeDevice, p: Mapping[str, int]) -> None:
        right(d, p)
        flips["n"] += 1
        t = tensors(p)["d"]
        t[t == 0] = BF16.type(-0.0) if flips["n"] % 2 else BF16.type(0.0)

    r = check(env_for(signs), ("zeros",), unordered=("atomic_add of d on line 7",))
    assert r.passed and r.cases[0].facts["allowed_by"] == "atomic_add of d on line 7"
    assert r.cases[0].facts["runs_that_differ_bitwise"] == 1
    assert check(env_for(signs), ("zeros",)).cases[0].cause == "repeat", "nothing declared: the runs must agree"

    def drifts(d: FakeDevice, p: Mapping[str, int]) -> None:
        right(d, p)
        flips["n"] += 1
        tensors(p)["d"][4, 4] += BF16.type(flips["n"] % 3)

    flips["n"] = -1
    r = check(env_for(drifts), ("normal",), unordered=("atomic_add of d on line 7",))
    assert not r.passed and r.cases[0].cause == "mismatch", "each run within the tolerance"


def test_the_declaration_comes_from_the_ops() -> None:
    assert float_sums(bound_of(RUNS["moe down"])) == ("bulk_reduce of out on line 130",)
    assert float_sums(bound_of(RUNS["moe up"])) == ()


def test_launches_of_a_check_have_edges_and_fewer_multiprocessors() -> None:
    from lowering import emit

    bound = corpus_kernel("gemm_sm90")
    sizes = GEMM.shapes["boundary"]
    made, skipped = jobs.launches(bound, emit(bound), GEMM, sizes, 132, "0" * 64, gate=True)
    assert {x.edge for x in made} == {True, False}
    assert skipped and all(0 in shape.values() for shape, _ in skipped), (
        "only empty tensors are refused, by the launcher"
    )
    wide = next(x for x in made if x.shape == {"M": 257, "N": 520, "K": 72})
    assert wide.fewer is not None and 0 < wide.fewer.plans[0]["grid"] < wide.plans[0]["grid"]
    plain, _ = jobs.launches(bound, emit(bound), GEMM, sizes, 132, "0" * 64)
    assert [x.shape for x in plain] == [dict(s) for s in sizes] and not any(x.fewer or x.edge for x in plain)


def test_every_other_case_has_pointers_that_are_aligned_to_what_kernels_may_assume() -> None:
    seen: list[set[int]] = []

    def body(d: FakeDevice, p: Mapping[str, int]) -> None:
        seen.append({a & -a for a in p.values()})
        right(d, p)

    r = check(env_for(body), ("normal", "small_int"))
    assert r.passed and min(seen[0]) >= 256 and seen[-1] == {BASE_ALIGNMENT}
    assert [c.facts.get("unaligned") for c in r.cases] == [None, BASE_ALIGNMENT]

    def overrun(d: FakeDevice, p: Mapping[str, int]) -> None:
        body(d, p)
        if p["d"] % 32:
            at(p["d"] + 2 * 17 * 24, 1)[:] = 0

    r = check(env_for(overrun), ("normal", "small_int"))
    assert [c.verdict for c in r.cases] == ["passed", "failed"] and r.cases[1].cause == "out-of-bounds"


def test_a_result_names_the_bytes_it_was_computed_from() -> None:
    r = check(env_for(right))
    case = Case(SHAPE, "normal", 0, 5, {})
    made = GEMM.inputs(case)
    assert r.cases[0].inputs == {n: hashlib.sha256(a.tobytes()).hexdigest() for n, a in made.items()}
    buffers = allocate(env_for(right), GEMM, jobs.Launch(shape=SHAPE, plans=(PLAN,)))
    launch = jobs.Launch(shape=SHAPE, plans=(PLAN,))
    changed = Case(SHAPE, "normal", 0, 6, {})
    done = Trial(
        buffers, GEMM, launch, changed, GEMM.inputs(changed), lambda stream: right(FakeDevice(), buffers.pointers)
    ).judge(2)
    assert done.ok and done.inputs is not None and done.inputs != r.cases[0].inputs


class Stream:
    """A device that counts the copies of a second stream; the kernel ends after some of them."""

    def __init__(self, copies: int, memory: bool = True) -> None:
        self.copies, self.left, self.memory, self.closed = 0, copies, memory, 0

    def alloc(self, nbytes: int, *, guard: int) -> Any:
        from cake_ir.diagnostics import error

        if not self.memory:
            raise CakeError(error("lowering/out-of-memory", "hardware", "none left"))
        return type("Buffer", (), {"pointer": 4096})()

    def new_stream(self) -> int:
        return 77

    def copy_device(self, to: int, source: int, nbytes: int, stream: int) -> None:
        assert stream == 77
        self.copies += 1

    def event(self) -> Any:
        device = self

        class Event:
            def record(self, stream: int) -> None:
                self.stream = stream

            def done(self) -> bool:
                return self.stream == 77 or device.copies > device.left

            def close(self) -> None:
                device.closed += 1

        return Event()


def test_the_load_lasts_as_long_as_the_kernel() -> None:
    for wanted in (0, 100):
        device = Stream(wanted)
        Load(device).run(lambda stream: None, 1)
        assert device.copies > wanted and device.closed >= 2
    device, ran = Stream(0, memory=False), []
    Load(device).run(ran.append, 1)
    assert ran == [1] and device.copies == 0, "without memory for it the kernel is launched alone"


# ---- edge shapes ---------------------------------------------------------------------------------------------------


def corpus_kernel(name: str, old: str = "", new: str = "", target: str = "sm_90a") -> BoundKernel:
    entry = next(k for k in kernels() if k.name == name)
    text = entry.text()
    assert old in text
    parsed = parse(text.replace(old, new), entry.file)
    assert parsed.file is not None, parsed.diagnostics
    done = bind(parsed.file, {**entry.bindings, **SMALL[name]}, target, entry.kernel)
    assert done.bound is not None, done.diagnostics
    return done.bound


def test_edge_shapes_lie_around_the_tiles_of_the_kernel() -> None:
    bound = corpus_kernel("gemm_sm90")
    assert tile_sizes(bound, GEMM) == {"M": (64, 128), "N": (64, 128), "K": (64,)}
    shapes = edge_shapes(bound, GEMM)
    assert {127, 128, 129, 257} <= {s["M"] for s in shapes}
    assert {128, 136} <= {s["N"] for s in shapes}, "N % 8 == 0: one more than a tile moves up to the next size"
    assert {s["K"] for s in shapes} >= {8, 64, 72, 136} and all(s["K"] for s in shapes), "this kernel refuses K == 0"
    assert [s for s in shapes if not all(s.values())] == list(shapes[-2:])
    assert {"K": 0} in [{k: v for k, v in s.items() if not v} for s in edge_shapes(corpus_kernel("gemm_sm80"), GEMM)]
    assert all(s["C"] for s in edge_shapes(corpus_kernel("kmeans_assign"), ALL["kmeans_assign"]))


def test_a_kernel_that_is_wrong_just_beyond_its_tile_is_found_by_its_edge_shapes() -> None:
    """The contract's boundary set has no row count between one and two tiles of this kernel."""
    text = """@kernel(target="sm_90a")
def scale(x: In[f32, M], y: Out[f32, M]):
    launch(ctas=ceil_div(M, 1024))
    rows = role(warp, count=4)
    with rows as w:
        for k in range(0, 256, 32):
            v = load(x[1024 * cta + 256 * w + k:], vec(1).cols[32])
            store(y[1024 * cta + 256 * w + k:], select(1024 * cta + 256 * w + k + col_index(v) == 33, v, v + v))
"""
    parsed = parse(text)
    assert parsed.file is not None, parsed.diagnostics
    bound = bind(parsed.file).bound
    assert bound is not None
    softmax = ALL["softmax"]
    contract = Contract(
        name="scale", summary="y = 2 x", dims={"M": "elements"}, flops=lambda s: float(s["M"]), precision="f32",
        tensors=(replace(softmax.tensors[0], extents=("M",)), replace(softmax.tensors[1], extents=("M",))),
        oracle=lambda m, t, s: {"y": Expected(2.0 * m.f64(t["x"]))},
        shapes={"tuning": ({"M": 4096},), "heldout": ({"M": 1024},), "boundary": ({"M": 1}, {"M": 8})},
    )  # fmt: skip
    r = check_cpu(bound, contract, "boundary", interpret=interpret, seed=1, secret=2)
    first = next(c for c in r.cases if c.verdict == "failed")
    assert not r.passed and first.edge and first.shape["M"] > 33 and first.distribution == "small_int"
    assert all(c.verdict == "passed" for c in r.cases if not c.edge)


def test_an_empty_dimension_needs_nothing_and_allows_nothing() -> None:
    bound = corpus_kernel("gemm_sm80")
    shapes = [{"M": 0, "N": 16, "K": 8}, {"M": 3, "N": 16, "K": 0}]
    r = check_cpu(bound, GEMM, shapes, interpret=interpret, seed=1, secret=2)
    assert r.passed and "no elements" in r.cases[0].message and r.cases[-1].total == 48, "an empty sum is zero"
    with pytest.raises(CakeError, match=r"C = 0 is not an extent \(1 \.\. "):
        check_cpu(
            corpus_kernel("kmeans_assign"),
            ALL["kmeans_assign"],
            [{"B": 1, "N": 1, "C": 0, "D": 8}],
            interpret=interpret,
        )
    launch = jobs.Launch(shape={"M": 0, "N": 24, "K": 16}, plans=())
    job = jobs.job("check", GEMM, [launch], [CUBIN], kernel="k", distributions=("normal",))
    assert run_check(env_for(right), job, GEMM, 5, lambda *a: None).passed


# ---- values --------------------------------------------------------------------------------------------------------


def test_declared_nan_and_inf_are_required_where_the_formula_has_them() -> None:
    for name in ("nan_some", "inf_some"):
        case = Case({"M": 24, "N": 16, "K": 32}, name, 1, 2)
        t = GEMM.inputs(case)
        out, expected = perfect(GEMM, case, t)
        assert not np.isfinite(out["d"].astype(np.float32)).all() and np.isfinite(out["d"].astype(np.float32)).any()
        assert judge(Math(), GEMM, case, t, out, expected).ok
        lost = np.nan_to_num(out["d"].astype(np.float32), nan=0.0, posinf=3e38, neginf=-3e38).astype(BF16)
        assert not judge(Math(), GEMM, case, t, {"d": lost}, expected).ok
        spread = out["d"].copy()
        spread[np.argwhere(np.isfinite(spread.astype(np.float32)))[0][0]] = np.nan
        assert judge(Math(), GEMM, case, t, {"d": spread}, expected).cause == "nonfinite"


def test_undefined_specials_are_never_drawn_and_declarations_are_consistent() -> None:
    softmax = ALL["softmax"]
    assert (softmax.special("-inf"), softmax.special("nan")) == ("ignored", "undefined")
    assert "In inputs: nan undefined, inf undefined, -inf ignored." in softmax.page()
    strict = replace(softmax, nonfinite={})
    with pytest.raises(CakeError, match=r"generate gives -inf in x \(masked_rows\), which is declared undefined"):
        strict.inputs(Case({"M": 2, "N": 8}, "masked_rows", 1, 2))
    with pytest.raises(ValueError, match="nan propagates, so the distributions must include 'nan_some'"):
        replace(softmax, nonfinite={"nan": "propagates"})
    with pytest.raises(ValueError, match="'inf_some' draws values that are undefined here"):
        replace(softmax, distributions=("normal", "inf_some"))
    with pytest.raises(ValueError, match="'nan': 'maybe' is not one of"):
        replace(softmax, nonfinite={"nan": "maybe"})
    assert replace(softmax, least={"N": 4}).digest != softmax.digest


def low(name: str, t: dict[str, np.ndarray], kind: np.dtype) -> dict[str, np.ndarray]:
    """What a kernel gives that keeps its running sums in 16 bits, 16 terms at a time."""

    def total(x: np.ndarray) -> np.ndarray:
        acc = np.zeros(x.shape[:-1], kind)
        for k in range(0, x.shape[-1], 16):
            acc = (acc.astype(np.float32) + x[..., k : k + 16].sum(-1, dtype=np.float32)).astype(kind)
        return acc.astype(np.float32)

    f = {n: a.astype(np.float32) for n, a in t.items()}
    if name.startswith("gemm_bf16"):
        b = f["b"].T if name == "gemm_bf16_nn" else f["b"]
        return {"d": total(f["a"][:, None, :] * b[None, :, :]).astype(BF16)}
    if name == "rmsnorm":
        mean = total(f["x"] * f["x"]) / f["x"].shape[-1]
        return {"y": (f["x"] / np.sqrt(mean + 2.0**-20)[:, None] * f["gain"]).astype(t["x"].dtype)}
    if name == "softmax":
        e = np.exp(f["x"] - f["x"].max(-1, keepdims=True))
        return {"y": (e / total(e)[:, None]).astype(np.float32)}
    if name == "col_sums":
        return {"y": total(np.concatenate([f["x"].T, f["y"][:, None]], axis=1))}
    if name == "row_norms":
        return {"y": total(f["x"] * f["x"])}
    if name.startswith(("kmeans_inertia", "kmeans_update")):
        problems = range(len(f["x"]))
        if name.startswith("kmeans_inertia"):
            gaps = [f["x"][b] - f["c"][b][t["label"][b]] for b in problems]
            return {"inertia": np.stack([total(total(g * g)) for g in gaps])}
        groups = [[f["x"][b][t["label"][b] == k] for k in range(f["c"].shape[1])] for b in problems]
        mean = np.stack(
            [
                np.stack([total(p.T) / np.float32(len(p)) if len(p) else old for p, old in zip(g, c, strict=True)])
                for g, c in zip(groups, f["c"], strict=True)
            ]
        ).astype(t["c"].dtype)
        w = mean.astype(np.float32)
        return {
            "mean": mean, "mean_sq": (w * w).sum(-1), "size": np.array([[len(p) for p in g] for g in groups], np.int32),
            "shift": np.sqrt(((w - f["c"]) ** 2).sum(-1)).max(-1),
        }  # fmt: skip
    score = f["c_sq"][:, None, :] - 2.0 * total(f["x"][:, :, None, :] * f["c"][:, None, :, :])
    return {"label": np.argmin(score, axis=-1).astype(np.int32)}


LONG = {
    "gemm_bf16": {"M": 24, "N": 24, "K": 1024}, "gemm_bf16_nn": {"M": 24, "N": 32, "K": 1024},
    "rmsnorm": {"M": 16, "D": 2048}, "softmax": {"M": 16, "N": 4096}, "row_norms": {"M": 16, "D": 2048},
    "col_sums": {"M": 2048, "N": 16},
    **{f"kmeans_assign{t}": {"B": 1, "N": 64, "C": 64, "D": 256} for t in ("", "_f16")},
    **{f"kmeans_{k}{t}": {"B": 2, "N": 2048, "C": 3, "D": 16} for k in ("inertia", "update") for t in ("", "_f16")},
}  # fmt: skip


@pytest.mark.parametrize("kind", [np.dtype(np.float16), BF16], ids=["f16", "bf16"])
@pytest.mark.parametrize("name", ALL)
def test_sums_kept_in_sixteen_bits_fail_every_contract(name: str, kind: np.dtype) -> None:
    c = ALL[name]
    assert set(ALL) == set(LONG)
    case = Case(LONG[name], "normal" if name.startswith("kmeans_assign") else "uniform", 1, 2)
    t = c.inputs(case)
    assert judge(Math(), c, case, t, low(name, t, np.dtype(np.float32))).ok, "the same with f32 sums passes"
    assert not judge(Math(), c, case, t, low(name, t, kind)).ok


def test_the_permutation_of_misplaced_rows_and_columns_is_named() -> None:
    exp = np.arange(64.0).reshape(16, 4)
    assert misplaced(exp, exp[np.arange(16) ^ 8]) == "rows hold others: 0 <- 8, 1 <- 9, 2 <- 10, ... (row xor 8)"
    assert misplaced(exp.T, np.roll(exp, -1, 0).T) == "columns hold others: 0 <- 1, 1 <- 2, 2 <- 3, ... (column + 1)"
    assert misplaced(exp, exp + 0.5) == "" and misplaced(np.ones((4, 4)), np.zeros((4, 4))) == ""
    case = Case({"M": 16, "N": 16, "K": 16}, "one_hot", 1, 2)
    t = GEMM.inputs(case)
    out, expected = perfect(GEMM, case, t)
    v = judge(Math(), GEMM, case, t, {"d": out["d"][np.arange(16) ^ 4]}, expected)
    assert "rows hold others" in v.where and "(row xor 4)" in v.message


def test_segments_are_empty_or_full_on_request() -> None:
    empty = segments("empty_segments", 5, 100, rng(1, 2))
    assert empty.tolist() == [0, 0, empty[2], empty[2], 100, 100] and empty.dtype == np.int32
    one = segments("one_segment", 5, 100, rng(1, 2))
    assert sorted(np.diff(one)) == [0, 0, 0, 0, 100]
    assert segments("normal", 5, 100, rng(1, 2))[-1] == 100 and segments("normal", 0, 0, rng(1, 2)).tolist() == [0]


# ---- who wrote it --------------------------------------------------------------------------------------------------


def test_a_wrong_element_is_blamed_on_the_line_that_wrote_it() -> None:
    """The wrong value is planted at one op and one tile; the answer points there."""
    good, wrong = "exp2(v - base) * scale)", "exp2(v - base) * (scale + cast(cta, f32)))"
    bound = corpus_kernel("softmax", good, wrong)
    shapes = [{"M": 2, "N": 1024}]
    r = check_cpu(bound, ALL["softmax"], shapes, interpret=interpret, distributions=("normal",), seed=1, secret=2)
    (case,) = r.cases
    assert case.owner is not None and case.at is not None and case.at["index"][0] == 1
    text = next(k for k in kernels() if k.name == "softmax").text()
    line = text[: text.index("store(y[cta, c:]")].count("\n") + 1
    assert (case.owner["line"], case.owner["op"], case.owner["cta"]) == (line, "store", 1)
    assert f"; written by store on line {line} (rows[" in case.message
    assert (
        case.diagnostic is not None
        and case.diagnostic.rule == "contract/wrong-result"
        and case.diagnostic.span.line == line
    )
    assert case.diagnostic in r.diagnostics and case.diagnostic.subject.role == "rows"


def test_a_gpu_answer_is_blamed_where_the_program_is() -> None:
    bound, contract = corpus_kernel("gemm_sm90"), GEMM
    bad = CaseResult(
        shape={"M": 300, "N": 264, "K": 72}, distribution="normal", verdict="failed", cause="mismatch", message="wrong",
        at={"tensor": "d", "index": [290, 200]},
    )  # fmt: skip
    good = bad.model_copy(update={"verdict": "passed", "at": None})
    on_two = bad.model_copy(update={"at": {**bad.at, "sms": 2}})  # type: ignore[dict-item]
    done = blame_job(bound, contract, [good, bad, on_two], 0, "05", 132)
    assert done[0] == good and done[1].owner is not None and done[2].owner is not None
    assert done[1].owner["op"] == "tma_store" and done[1].owner["box"] == [[256, 300], [192, 256]]
    assert (done[1].owner["cta"], done[2].owner["cta"]) != (done[1].owner["cta"],) * 2, "another grid, another CTA"
    assert blame_job(bound, contract, done, 0, "05", 132) == done, "nothing is said twice"
    gone = bad.model_copy(update={"at": {"tensor": "d", "index": [999, 0]}})
    assert blame_job(bound, contract, [gone], 0, "05", 132) == [gone]


def test_a_search_that_breaks_leaves_the_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    import analyses.owners

    def broken(*args: Any, **more: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(analyses.owners, "owner", broken)
    bound, contract = corpus_kernel("gemm_sm80"), GEMM
    bad = CaseResult(
        shape={"M": 8, "N": 8, "K": 8}, distribution="normal", verdict="failed", cause="mismatch", message="wrong",
        at={"tensor": "d", "index": [0, 0]},
    )  # fmt: skip
    assert blame_job(bound, contract, [bad], 0, "05", 132) == [bad]


def test_checks_of_a_timing_say_which_secret_their_inputs_came_from() -> None:
    """Without it nobody could draw the inputs again that the blame of a ragged kernel needs."""
    from corpus.gpu_bench import _Inputs, _Timing

    launch = jobs.Launch(shape=SHAPE, plans=(PLAN,))
    job = jobs.job("bench", GEMM, [launch], [CUBIN], kernel="k")
    env = env_for(right)
    timing = _Timing(env, job, GEMM, launch, "warm", 5, _Inputs(GEMM))
    buffers = allocate(env, GEMM, launch)
    case = Case(SHAPE, "normal", 0, 5, {})
    trial = Trial(buffers, GEMM, launch, case, GEMM.inputs(case), lambda stream: right(FakeDevice(), buffers.pointers))
    assert timing._fresh(trial, 4, "on changed inputs")
    assert timing.checks[-1].secret == f"{4:032x}" and timing.checks[-1].inputs
