"""The control skeleton: which events which agent executes, for shapes small enough to count by hand."""

from __future__ import annotations

import pytest

from cake_ir.bound import BoundKernel, For, Op, walk
from cake_ir.skeleton import AgentTrace, BarAt, DataOracle, Event, SkeletonLimit, ViewAt, compile_skeleton
from cake_ir.witness import iter_events, witnesses
from tests.analyses.order.programs import SPLIT_K, base, bound

RAGGED = """
@kernel(target="sm_90a")
def ragged(offsets: In[i32, E + 1], gain: In[f32, E], x: In[f32, T, 128], y: Out[f32, T, 128]):
    launch(ctas=E)
    rows = role(warp, count=2)
    begin = load(offsets[cta])
    end = load(offsets[cta + 1])
    assume(0 <= begin <= end <= T)
    with rows as w:
        for r in range(begin + w, end, 2):
            store(y[r, :], load(x[r, :], vec(4).cols[128]))
"""

GUESS = """
@kernel(target="sm_90a")
def guess(x: In[f32, N, 128], y: Out[f32, N]):
    launch(ctas=N)
    rows = role(warp)
    with rows as w:
        v = load(x[cta, :], vec(4).cols[128])
        top = row_max(v)
        while top > 1.0:
            v = v * 0.5
            top = row_max(v)
            store(y[cta], top)
"""


def names(trace: AgentTrace) -> list[str]:
    return [e.node.name for e in iter_events(trace.events) if isinstance(e.node, Op)]


def named(event: Event, name: str) -> bool:
    return isinstance(event.node, Op) and event.node.name == name


def run(kernel: BoundKernel, dims: dict[str, int], sms: int = 2, oracle: DataOracle | None = None) -> list[AgentTrace]:
    return compile_skeleton(kernel).run(dims, None, sms, oracle)


def test_roles_project_one_body() -> None:
    producer, *math = run(bound(base("kmeans_assign")), {"B": 1, "N": 1, "C": 129, "D": 8})
    assert names(producer) == ["expect", "tma_load"] + 2 * ["wait", "expect", "tma_load"]
    assert len(math) == 2
    one = ["load", "wait", "wgmma", "wgmma_commit", "wgmma_wait", "arrive"]
    assert names(math[0]) == ["wait", *one, *one, "row_argmin", "store"] == names(math[1])


def test_uses_slots_and_boxes_are_concrete() -> None:
    traces = run(bound(base("kmeans_assign")), {"B": 1, "N": 1, "C": 640, "D": 8})
    waits = [e.vals["bar"] for e in traces[0].events if named(e, "wait")]
    assert [(b.use, b.slot, b.phase) for b in waits] == [(-4, 0, -1), (-3, 1, -1), (-2, 2, -1), (-1, 3, -1), (0, 0, 0)]
    assert all(isinstance(b, BarAt) and b.cta == 0 for b in waits)
    views = [e.vals["a"] for e in traces[2].events if named(e, "wgmma")]
    assert all(isinstance(v, ViewAt) and (v.row0, v.row1, v.col0, v.col1) == (64, 128, 0, 128) for v in views)


def test_regions_are_clipped_at_the_extent() -> None:
    traces = run(bound(base("kmeans_assign")), {"B": 2, "N": 130, "C": 100, "D": 8})
    copies = [
        e.vals["region"].dims for t in traces if t.role.name == "producer" for e in t.events if named(e, "tma_load")
    ]
    assert copies[0] == ((0, 1), (0, 128), (0, 8))
    assert copies[2] == ((0, 1), (128, 130), (0, 8)), "second tile of the first batch"
    assert copies[1] == ((0, 1), (0, 100), (0, 8)), "the centroids"


def test_peers_of_a_cluster() -> None:
    traces = run(bound(SPLIT_K), {"M": 1, "N": 1, "K": 128})
    assert [t.cta for t in traces] == 6 * [0] + 6 * [1]
    stores = [v for t in traces for e in t.events if named(e, "store") and isinstance(v := e.vals["dst"], ViewAt)]
    assert {v.cta for v in stores} == {0}, "partial sums of both CTAs go to rank 0"
    assert sorted((v.row0 // 16) for v in stores) == list(range(8))


def test_persistent_tiles_follow_the_number_of_sms() -> None:
    skeleton = compile_skeleton(bound(base("gemm_sm90")))
    shape = {"M": 512, "N": 512, "K": 64}
    for sms, tiles in ((2, 4), (4, 2), (8, 1)):
        traces = skeleton.run(shape, None, sms, ctas=(0,))
        assert names(traces[0]).count("expect") == tiles


def test_integer_loads_follow_the_oracle_consistently() -> None:
    kernel = bound(RAGGED)
    for oracle, rows in ((DataOracle("zero"), 0), (DataOracle("step", 5), 5), (DataOracle("ramp", 6), 6)):
        traces = run(kernel, {"E": 3, "T": 6}, oracle=oracle)
        assert sum(names(t).count("store") for t in traces) == rows


@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_data_dependent_loops_run_as_often_as_asked(rounds: int) -> None:
    (trace,) = run(bound(GUESS), {"N": 1}, oracle=DataOracle(rounds=rounds))
    assert names(trace).count("store_scalar") == rounds


def test_violated_where_is_an_error() -> None:
    with pytest.raises(ValueError, match="where"):
        run(bound(base("gemm_sm90")), {"M": 1, "N": 8, "K": 7})


def test_long_runs_are_cut_and_said_to_be() -> None:
    kernel = bound(base("kmeans_assign"))
    with pytest.raises(SkeletonLimit) as caught:
        compile_skeleton(kernel).run({"B": 1, "N": 1, "C": 10**6, "D": 8}, limit=1000)
    loops = {s.span for s in walk(kernel.body) if isinstance(s, For)}
    assert caught.value.span in loops and caught.value.rounds > 10


def test_witnesses_wrap_rings_and_repeat_tiles() -> None:
    found = witnesses(bound(base("gemm_sm90")))
    for uses in (1, 3, 4, 5, 9):
        assert f"{uses} uses of a ring of 4 (full)" in found.met
    assert found.unmet == ("0 uses of a ring of 4 (full)",), "K > 0"
    assert {"3 tiles per CTA", "3 tiles for 2 clusters"} <= {w.goal for w in found.witnesses}
    assert any(w.shape["K"] % 64 for w in found.witnesses) and any(w.shape["K"] % 64 == 0 for w in found.witnesses)
    assert len(found.witnesses) <= 12


def test_witness_data_satisfy_the_assumptions() -> None:
    found = witnesses(bound(RAGGED))
    assert {w.oracle.pattern for w in found.witnesses} > {"step"}
    assert all(w.oracle.top <= w.shape["T"] for w in found.witnesses)


GUARDED = """
@kernel(target="sm_90a")
def k(x: In[f32, M, D], y: Out[f32, M, D]):
    where(D > 0, D <= 512, D % 8 == 0)
    launch(ctas=M)
    one = role(thread)
    team = role(warp)
    x_s = smem(f32, 1, 64, stages=2)
    full = mbarrier(stages=2)
    free = mbarrier(stages=2)
    with one:
        for j in unroll(8):
            if 64 * j < D:
                wait(free[j - 2])
                expect(full[j])
                tma_load(x_s[j], x[cta:, 64 * j:], signal=full[j])
    with team:
        for j in unroll(8):
            if 64 * j < D:
                wait(full[j])
                store(y[cta:, 64 * j:], load(x_s[j], vec(2)[1, 64]))
                fence_async()
                arrive(free[j])
"""


def test_a_chain_of_guards_is_run_to_its_end() -> None:
    """Only a width above 448, which is no constant of the text and no multiple of 8 beside one, takes all eight steps."""
    kernel = bound(GUARDED)
    assert max(w.shape["D"] for w in witnesses(kernel).witnesses) > 448
