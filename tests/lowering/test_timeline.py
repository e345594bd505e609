"""The instrumented form: where marks stand, that they change nothing, what the machine code holds, and what comes back."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import cake_ir
from cake_ir.binding.program import KernelLaunch
from cake_ir.diagnostics import CakeError
from corpus.kernels import kernels
from lowering import build, emit
from lowering.emission import plan
from lowering.emission.marks import op_kind
from lowering.plan import LaunchPlan
from lowering.timeline import KINDS, Shape, Timeline, chrome_trace, clock_ghz, decode, fit, sized, tracks_of
from tests.lowering.emit_helpers import GRID, bind_text, corpus_kernel
from tests.lowering.emulation import COMPILER, run


def marks(bound: Any) -> list[tuple[str, str, int]]:
    """(role, kind, line) of every mark, in the order of the text."""
    return [(m["role"], m["kind"], m["line"]) for m in emit(bound, timeline=True).manifest.timeline["marks"]]  # type: ignore[index]


# ---- where marks stand ----------------------------------------------------------------------------------------------------------


def test_marks_of_the_gemm() -> None:
    assert marks(corpus_kernel("gemm_sm90")) == [
        ("producer", "compute", 14), ("producer", "wait", 34), ("producer", "issue", 35),
        ("math", "compute", 15), ("math", "wait", 39), ("math", "compute", 40), ("math", "wait", 42), ("math", "wait", 49),
        ("math", "wait", 55), ("math", "wait", 56), ("math", "store", 57), ("math", "wait", 59), ("math", "store", 61),
        ("math", "wait", 66), ("all", "wait", 67),
    ]  # fmt: skip


def test_marks_of_kmeans() -> None:
    assert marks(corpus_kernel("kmeans_assign")) == [
        ("producer", "compute", 16), ("producer", "wait", 35), ("producer", "issue", 36), ("producer", "wait", 45),
        ("producer", "issue", 46),
        ("math", "compute", 17), ("math", "compute", 39), ("math", "wait", 41), ("math", "compute", 42), ("math", "wait", 51),
        ("math", "wait", 52), ("math", "compute", 53), ("math", "wait", 56), ("math", "compute", 57), ("math", "store", 69),
        ("math", "wait", 73),
    ]  # fmt: skip


def test_a_mark_says_what_a_wait_waits_for_and_which_ops_share_it() -> None:
    table = emit(corpus_kernel("gemm_sm90"), timeline=True).manifest.timeline
    assert table is not None and table["file"] == "gemm_sm90.cake" and table["kernel"] == "gemm_sm90"
    assert table["tracks"] == [["producer", 0], ["math", 0], ["math", 1]]
    by_line = {m["line"]: m for m in table["marks"]}
    assert by_line[34]["wait"] == {"text": "wait(free[n - 4])", "barrier": "free", "stage": "n - 4", "stages": 4}
    assert by_line[35]["ops"] == ["expect", "tma_load"] and by_line[35]["end_line"] == 37
    assert by_line[40]["ops"] == ["wgmma", "wgmma_commit"] and "wait" not in by_line[40]
    assert by_line[42]["ops"] == ["wgmma_wait", "arrive"], "bookkeeping before a wait opens no span"
    assert by_line[67]["wait"]["text"] == "sync(cluster)"


LOOPS = """
@kernel(target="sm_90a")
def k(x: In[f32, M, 64], y: Out[f32, M, 64]):
    launch(ctas=1)
    r = role(warp, count=2)
    for i in range(M):
        with r:
            v = load(x[i:, :], vec(2)[1, 64])
            for j in range(3):
                v = v * 2.0 + 1.0
            if i > 2:
                v = v - 1.0
            store(y[i:, :], v)
"""


def test_loops_and_branches_of_one_kind_have_no_mark_inside() -> None:
    assert marks(bind_text(LOOPS)) == [("r", "compute", 5), ("r", "compute", 8), ("r", "store", 13)]
    text = emit(bind_text(LOOPS), timeline=True).cuda
    loop = text[text.index("for (int j") :]
    assert "timeline_mark" not in loop[: loop.index("}")]


ONE_KIND = LOOPS.replace("            store(y[i:, :], v)\n", "") + "    with r:\n        store(y[0:, :], v)\n"


def test_a_loop_whose_back_edge_and_entry_are_of_one_kind_has_no_mark_at_its_head() -> None:
    text = ONE_KIND.replace(
        "    for i in range(M):", "    with r:\n        v = load(x[0:, :], vec(2)[1, 64])\n    for i in range(M):"
    )
    text = text.replace(
        "            v = load(x[i:, :], vec(2)[1, 64])\n", "            v = v + load(x[i:, :], vec(2)[1, 64])\n"
    )
    assert [kind for _, kind, _ in marks(bind_text(text))] == ["compute", "store"]


BRANCHES = """
@kernel(target="sm_90a")
def k(x: In[f32, M, 64], y: Out[f32, M, 64]):
    launch(ctas=1)
    r = role(warpgroup, count=2)
    done = mbarrier(arrivals=8)
    with r as i:
        v = load(x[0:, :], vec(2)[8, 64])
        arrive(done[0])
        if i == 0:
            wait(done[0])
        v = v + 1.0
        store(y[8 * i:, :], v)
"""


def test_a_wait_in_a_branch_is_marked_there_and_what_follows_again() -> None:
    assert marks(bind_text(BRANCHES)) == [
        ("r", "compute", 5),
        ("r", "wait", 11),
        ("r", "compute", 12),
        ("r", "store", 13),
    ]
    text = emit(bind_text(BRANCHES), timeline=True).cuda
    branch = text[text.index("if (instance == 0)") :]
    assert branch.index("timeline_mark") < branch.index("mbar_wait") < branch.index("}")


def test_a_loop_that_polls_memory_waits() -> None:
    table = emit(whole("hazards/poll_sm90")[0], timeline=True).manifest.timeline
    assert table is not None
    (poll,) = [m for m in table["marks"] if m["kind"] == "wait" and m["ops"] == ["load_scalar"]]
    assert poll["role"] == "producer" and poll["line"] == 17 and poll["wait"]["text"] == "load(flag) until it changes"


def test_unrolled_copies_of_a_line_share_their_mark() -> None:
    text = emit(corpus_kernel("gemm_sm90"), timeline=True).cuda
    ids = re.findall(r"timeline_mark\(.*?, (\d+)u\)", text[text.index('extern "C"') :])
    assert ids.count("11") == 4 and len(set(ids)) == 16


def test_every_op_has_a_kind_or_is_bookkeeping() -> None:
    expected = {
        "wait": "wait", "sync": "wait", "wgmma_wait": "wait", "bulk_wait_read": "wait", "cp_async_wait": "wait", "griddep_wait": "wait",
        "tma_load": "issue", "cp_async": "issue", "bulk_load": "issue",
        "wgmma": "compute", "mma": "compute", "tcgen05_mma": "compute", "load": "compute", "ldmatrix": "compute", "tmem_load": "compute",
        "row_argmin": "compute", "row_sum": "compute", "store": "store", "store_scalar": "store", "stmatrix": "store",
        "tma_store": "store", "bulk_reduce": "store", "atomic_add": "store", "arrive": None, "expect": None, "fence_async": None,
        "wgmma_commit": None, "tcgen05_commit": None,
    }  # fmt: skip
    seen: dict[str, set[str | None]] = {}
    from cake_ir.bound import Op, walk

    for k in kernels():
        for stmt in walk(corpus_kernel(Path(k.path).stem, k.targets[0], **k.bindings).body):
            if isinstance(stmt, Op):
                seen.setdefault(stmt.name, set()).add(op_kind(stmt))
    for name, kinds in seen.items():
        assert len(kinds) == 1
        if name in expected:
            assert kinds == {expected[name]}, name
    assert {
        "wait",
        "tma_load",
        "wgmma",
        "tcgen05_mma",
        "stmatrix",
        "tma_store",
        "cp_async",
        "mma",
        "row_argmin",
    } <= set(seen)


# ---- it changes nothing ----------------------------------------------------------------------------------------------------------


DATA = Path(__file__).parents[1] / "data"
OTHERS = [
    "sketches/06_attention_sm90",
    "hazards/poll_sm90",
    "hazards/cluster_sm90",
    "hazards/tmem_alias_sm100",
    "hazards/forms_sm90",
]
PROGRAMS = ["sketches/08_knn_sm90", "sketches/09_moe_fp8_sm90"]


def whole(name: str) -> list[Any]:
    """The kernels of a corpus kernel, another file, or a program."""
    entry = next((k for k in kernels() if k.name == name), None)
    if entry is not None:
        return [corpus_kernel(Path(entry.path).stem, entry.targets[-1], **entry.bindings)]
    file = DATA / f"{name}.cake"
    if name in OTHERS:
        return [bind_text(file.read_text(), file.name)]
    parsed = cake_ir.parse(file.read_text(), name=file.name)
    assert parsed.file is not None
    program = cake_ir.bind_program(parsed.file).program
    assert program is not None
    return [step.kernel for step in program.steps if isinstance(step, KernelLaunch)]


@pytest.mark.parametrize("name", [*(k.name for k in kernels()), *OTHERS, *PROGRAMS])
def test_the_plain_form_is_the_instrumented_one_without_its_marks(name: str) -> None:
    """So the plain text, and with it every committed cubin, does not depend on the timeline."""
    for bound in whole(name):
        same_but_marks(bound)


def same_but_marks(bound: Any) -> None:
    plain, marked = emit(bound), emit(bound, timeline=True)
    assert "timeline" not in plain.cuda and "timeline" not in plain.manifest.to_json()

    def body(text: str) -> list[str]:
        own = text[text.index('extern "C"') :].splitlines()[2:]
        return [
            x.strip()
            for x in own
            if "timeline_" not in x and not x.startswith("#line") and not x.strip().startswith("const int")
        ]

    assert body(marked.cuda) == body(plain.cuda)
    assert marked.promised == plain.promised
    assert json.loads(json.dumps(marked.manifest.to_json()))["timeline"]["marks"]


def test_launch_plans_carry_capacity_and_stride() -> None:
    emitted = emit(bind_text(LOOPS), timeline=True)
    made = plan(emitted, {"M": 4}).to_json()
    assert [a["kind"] for a in made["args"][-3:]] == ["timeline", "timeline_capacity", "timeline_stride"]
    again = LaunchPlan.from_json(sized(made, Shape(2, 1, 4, 64)))
    assert [a.value for a in again.args[-2:]] == [64, 4]
    for bad in (Shape(2, 1, 4, 100), Shape(2, 1, 0, 64), Shape(2, 1, 3, 64), Shape(2, 1, 1, 4)):
        with pytest.raises(CakeError, match=r"args\["):
            LaunchPlan.from_json(sized(made, bad))


# ---- machine code ----------------------------------------------------------------------------------------------------------------

BUILT = [
    ("gemm_sm90", None, {}), ("kmeans_assign", None, {}), ("kmeans_packed", None, {}), ("gemm_sm80", "sm_80", {}),
    ("gemm_sm100", None, {"CG": 2}), ("rmsnorm", "sm_80", {}), ("softmax", "sm_90a", {}), ("softmax", "sm_100a", {}),
]  # fmt: skip


@pytest.mark.parametrize("name,target,bindings", BUILT)
def test_instrumented_machine_code_keeps_its_promises_and_registers(
    name: str, target: str | None, bindings: Any
) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    bound = corpus_kernel(name, target, **bindings)
    plain, emitted = build(emit(bound)), emit(bound, timeline=True)
    marked = build(emitted)
    assert marked.ok and not [d for d in marked.diagnostics if d.rule.startswith("lowering/wgmma")]
    assert marked.resources.spill_store_bytes == plain.resources.spill_store_bytes == 0
    names = [i.mnemonic for i in marked.sass.instructions]
    assert (
        sum(i.operands.find("SR_CLOCKLO") >= 0 for i in marked.sass.instructions)
        >= (emitted.manifest.timeline or {})["sites"]
    )
    for family in ("HGMMA", "HMMA", "UTCHMMA", "USETMAXREG", "UTMALDG", "WARPGROUP.DEPBAR"):
        count = sum(i.mnemonic.startswith(family) for i in plain.sass.instructions)
        assert sum(n.startswith(family) for n in names) == count, family


def test_the_instrumented_form_can_be_held_to_the_occupancy_of_the_plain_one() -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    bound = corpus_kernel("rmsnorm", "sm_90a")
    resident = build(emit(bound)).occupancy.blocks_per_sm
    tight = build(emit(bound, timeline=True, resident=resident))
    assert tight.occupancy.blocks_per_sm == resident and tight.resources.spill_store_bytes == 0


@pytest.mark.parametrize("name", ["gemm_sm90", "kmeans_assign"])
def test_a_mark_is_stored_before_its_role_can_hang(name: str) -> None:
    """From the clock's reading to the next barrier instruction the store has been issued: a hung role leaves its mark behind."""
    pytest.importorskip("cuda.bindings.nvrtc")
    read, checked = False, 0
    for i in build(emit(corpus_kernel(name), timeline=True)).sass.instructions:
        if "SR_CLOCKLO" in i.operands and i.mnemonic.startswith("CS2R"):
            read = True
        elif i.mnemonic.startswith("STG.E.64.STRONG.SYS"):
            read = False
        elif i.mnemonic.startswith(("SYNCS.PHASECHK", "BAR.SYNC", "UCGABAR_WAIT")):
            checked += 1
            assert not read, f"at {i.offset:#x} of {name}"
    assert checked > 4


# ---- run on the host ---------------------------------------------------------------------------------------------------------------

EMULATED = pytest.mark.skipif(COMPILER is None, reason="needs g++")
BF16 = ml_dtypes.bfloat16


def aligned(shape: Shape) -> Any:
    """A zeroed buffer that begins with a block."""
    raw = np.zeros(shape.nbytes + shape.align, np.uint8)
    offset = -raw.ctypes.data % shape.align
    return raw[offset : offset + shape.nbytes]


def gemm(
    folder: Path, emitted: Any, shape: Shape | None, dims: tuple[int, int, int], hangs: bool = False
) -> tuple[Any, Any]:
    m, n, k = dims
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(m, k)).astype(BF16), rng.normal(size=(n, k)).astype(BF16)
    d = np.full((m, n), np.nan, BF16)
    buffer = aligned(shape) if shape else None
    folder.mkdir()
    run(emitted, {"a": a, "b": b, "d": d}, {"M": m, "N": n, "K": k}, None, 2, folder, buffer, shape, hangs)
    return d, buffer


@EMULATED
def test_an_instrumented_gemm_computes_the_same_bits_and_tells_its_whole_life(tmp_path: Path) -> None:
    bound = corpus_kernel("gemm_sm90")
    emitted = emit(bound, timeline=True)
    table = emitted.manifest.timeline
    assert table is not None
    dims = (264, 512, 328)
    grid = 2
    assert plan(emitted, {"M": 264, "N": 512, "K": 328}, {}, 2).grid == grid
    shape = Shape(3, grid, 1, 512)
    want, _ = gemm(tmp_path / "plain", emit(bound), None, dims)
    got, buffer = gemm(tmp_path / "marked", emitted, shape, dims)
    assert got.tobytes() == want.tobytes()
    tracks = list(tracks_of(buffer, table, shape))
    assert [(t.cta, t.role, t.instance) for t in tracks] == [
        (c, *x) for c in range(grid) for x in [("producer", 0), ("math", 0), ("math", 1)]
    ]
    tiles, steps = 4, 6  # each cluster runs its tiles one after another, each tile ceil(328 / 64) steps
    mine = [t for t in tracks if t.cta == 0 and t.role == "math"]
    assert [int((t.ids == 6).sum()) for t in mine] == [tiles * steps] * 2
    for t in tracks:
        assert t.ended and not t.dropped and (np.diff(t.clocks) > 0).all()
    out = decode(buffer, table, shape, ghz=2.0)
    assert {r["role"]: r["instances"] for r in out.roles} == {"producer": 1, "math": 2}
    for r in out.roles:
        assert r["covered"] == pytest.approx(1.0, abs=1e-3) and r["busy"] > 0.8
    for track in out.to_json()["tracks"]:
        spans = track["spans"]
        assert spans[0][1] == track["start_us"] and all(x[2] == y[1] for x, y in pairwise(spans))
        assert spans[-1][2] == pytest.approx(track["end_us"], abs=0.02)


@EMULATED
def test_a_hung_gemm_leaves_the_place_where_each_role_stands(tmp_path: Path) -> None:
    from corpus.gpu_where import sentence, standing
    from lowering.timeline import marks_of

    text = (Path(__file__).parents[2] / "corpus/kernels/gemm_sm90.cake").read_text()
    emitted = emit(bind_text(text.replace("if k > 0:", "if k > 1:"), "gemm_sm90.cake"), timeline=True)
    table = emitted.manifest.timeline
    assert table is not None
    shape = Shape(3, 2, 1, 128)
    _, buffer = gemm(tmp_path / "hung", emitted, shape, (256, 256, 640), hangs=True)
    tracks = list(tracks_of(buffer, table, shape))
    assert not any(t.ended for t in tracks)
    roles = standing(tracks, marks_of(table))
    said = sentence(roles, shape)
    assert "producer stands at line 34, wait(free[n - 4]) (2 CTAs" in said
    assert "math 0..1 stands at line 39, wait(full[n]) (2 CTAs" in said
    assert {r["role"]: r["stage"] for r in roles} == {"producer": "n - 4", "math": "n"}
    assert next(r for r in roles if r["role"] == "math")["passed"] is not None
    halted = decode(buffer, table, shape, ghz=2.0)
    assert {t["role"] for t in halted.tracks} == {"producer", "math"}


LED = """
@kernel(target="sm_90a")
def k(x: In[bf16, M, 64], y: Out[bf16, M, 64]):
    launch(ctas=ceil_div(M, 64))
    one = role(thread, warps=2)
    r = role(warp)
    s = smem(bf16, 64, 64, stages=2, swizzle=128)
    full = mbarrier(stages=2, arrivals=1)
    n = 0
    for i in range(3):
        with one:
            expect(full[n])
            tma_load(s[n], x[64 * cta:, :], signal=full[n])
        with r:
            wait(full[n])
            store(y[64 * cta:, :], ldmatrix(s[n], mma_d[64, 64]))
        n += 1
        sync(cta)
"""


@EMULATED
def test_a_thread_role_whose_warps_meet_barriers_records_by_its_one_thread(tmp_path: Path) -> None:
    emitted = emit(bind_text(LED), timeline=True)
    table = emitted.manifest.timeline
    assert table is not None and "if (leader)" in emitted.cuda
    kinds = {m["id"]: m["kind"] for m in table["marks"]} | {0: "end"}
    shape = Shape(2, 3, 2, 64)  # CTAs 0 and 2 of three
    buffer = aligned(shape)
    x = np.random.default_rng(2).normal(size=(192, 64)).astype(BF16)
    y = np.zeros_like(x)
    run(emitted, {"x": x, "y": y}, {"M": 192}, None, 3, tmp_path, buffer, shape)
    assert y.tobytes() == x.tobytes()
    tracks = list(tracks_of(buffer, table, shape))
    assert [(t.cta, t.role) for t in tracks] == [(0, "one"), (0, "r"), (2, "one"), (2, "r")]
    for t in tracks:
        each = ["issue", "wait"] if t.role == "one" else ["wait", "compute", "store", "wait"]
        assert [kinds[int(i)] for i in t.ids] == ["compute", *each * 3, "end"]
    assert decode(buffer, table, shape, ghz=2.0).recorded_ctas == 2


def test_idle_lanes_of_a_thread_role_and_grid_syncs_build() -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    emitted = emit(bind_text(GRID), timeline=True)
    assert emitted.manifest.cooperative and build(emitted).ok
    assert [m["wait"]["text"] for m in (emitted.manifest.timeline or {})["marks"] if m["kind"] == "wait"] == [
        "sync(grid)"
    ] * 2


# ---- the decoder -----------------------------------------------------------------------------------------------------------------

TABLE = {
    "kernel": "k", "file": "k.cake", "tracks": [["p", 0], ["m", 0]],
    "marks": [
        {"id": 1, "kind": "compute", "role": "p", "line": 3, "end_line": 3, "ops": ["start"]},
        {"id": 2, "kind": "wait", "role": "p", "line": 4, "end_line": 4, "ops": ["wait"], "wait": {"text": "wait(b[n])"}},
        {"id": 3, "kind": "compute", "role": "m", "line": 7, "end_line": 9, "ops": ["wgmma"]},
        {"id": 4, "kind": "store", "role": "m", "line": 10, "end_line": 10, "ops": ["store"]},
    ],
}  # fmt: skip


class Recorder:
    """Writes a buffer as the helpers of `lowering.helpers.timeline` do: cycles of 0.5 ns, SM clocks as they come."""

    def __init__(self, shape: Shape, ghz: float = 2.0) -> None:
        self.shape, self.ghz = shape, ghz
        self.words = np.zeros(shape.nbytes // 8, "<u8")

    def track(
        self,
        cta: int,
        index: int,
        records: list[tuple[int, int]],
        *,
        end: int | None,
        sm: int = 0,
        skew: int = 0,
        loop: int = 1,
    ) -> None:
        """records: (mark, ns); end: ns or None. skew: cycles that this SM's clock is ahead. loop: records between loop heads."""
        s = self.shape
        block = self.words.reshape(-1, s.capacity)[cta // s.stride * s.tracks + index]

        def clock(ns: int) -> int:
            return round(ns * self.ghz) + skew

        block[-3:] = (records[0][1] if index == 0 else 0, clock(records[0][1]), sm | 1 << 32)
        at = 0
        for n, (mark, ns) in enumerate(records + ([(0, end)] if end is not None else [])):
            if n % loop == 0 and at >= s.capacity // 2:
                at = 0
            block[at] = (clock(ns) + (mark << 54)) % (1 << 64)
            at += 1

    def decode(self, **more: Any) -> Timeline:
        return decode(self.words.tobytes(), TABLE, self.shape, **{"ghz": self.ghz, **more})


def test_spans_add_up_to_the_life_of_their_role() -> None:
    r = Recorder(Shape(2, 1, 1, 32))
    r.track(0, 0, [(1, 1_000_000), (2, 1_001_000), (1, 1_004_000)], end=1_010_000)
    r.track(0, 1, [(3, 1_000_000), (4, 1_008_000)], end=1_010_000)
    t = r.decode()
    assert t.kernel_us == 10.0 and t.recorded_ctas == 1 and t.clock_ghz == 2.0
    p, m = t.roles
    assert (p["busy"], p["us"]) == (1.0, {"wait": 3.0, "issue": 0.0, "compute": 7.0, "store": 0.0, "idle": 0.0})
    assert (m["mean_us"], m["us"]["compute"], m["us"]["store"]) == (10.0, 8.0, 2.0)
    assert [(x["line"], x["us"], x["share"]) for x in t.lines] == [
        (7, 8.0, 0.8),
        (3, 7.0, 0.7),
        (4, 3.0, 0.3),
        (10, 2.0, 0.2),
    ]
    assert t.tracks[0]["spans"] == [[1, 0.0, 1.0], [2, 1.0, 4.0], [1, 4.0, 10.0]]


@pytest.mark.parametrize("loop", [1, 3, 5])
@pytest.mark.parametrize("count", [9, 10, 11, 12, 19, 20, 21, 23, 30, 37, 64])
def test_a_ring_keeps_the_latest_records(count: int, loop: int) -> None:
    r = Recorder(Shape(2, 1, 1, 32))
    times = [1000 + 100 * i for i in range(count)]
    r.track(0, 0, [(1 if i == 0 else 2, t) for i, t in enumerate(times)], end=times[-1] + 100, loop=loop)
    (track,) = list(tracks_of(r.words.tobytes(), TABLE, r.shape))
    kept = len(track.clocks)
    assert track.ended and list(track.clocks // 2) == [*times, times[-1] + 100][-kept:], "the newest, without a gap"
    assert kept >= min(count + 1, 16)
    assert (track.dropped == 0) == (kept == count + 1)
    if track.dropped:
        assert track.dropped == count + 1 - kept
        t = r.decode()
        assert t.dropped == track.dropped and t.tracks[0]["spans"][0][2] - t.tracks[0]["spans"][0][1] == pytest.approx(
            0.1
        )


def test_a_hung_track_has_no_end_and_its_last_mark_stands() -> None:
    r = Recorder(Shape(2, 2, 1, 32))
    r.track(0, 0, [(1, 1000), (2, 2000)], end=None)
    r.track(1, 0, [(1 if i == 0 else 2, 1000 + 100 * i) for i in range(40)], end=None, sm=1)
    r.track(1, 1, [(3, 1000)], end=1500, sm=1)
    a, b, c = tracks_of(r.words.tobytes(), TABLE, r.shape)
    assert (a.ended, list(a.ids), a.dropped) == (False, [1, 2], 0)
    assert (b.ended, int(b.ids[-1]), len(b.ids) + b.dropped) == (False, 2, 40)
    assert c.ended and c.last == 3000
    t = r.decode()
    assert t.kernel_us == pytest.approx(3.9) and t.tracks[0]["spans"][-1] == [2, 1.0, 1.0]


def test_clocks_of_a_long_lived_gpu_do_not_reach_into_the_mark() -> None:
    r = Recorder(Shape(2, 1, 1, 32))
    r.track(0, 0, [(1, 1000), (2, 2000)], end=5000, skew=(3 << 54) + 12345)
    (track,) = tracks_of(r.words.tobytes(), TABLE, r.shape)
    assert list(track.ids) == [1, 2, 0] and int(track.clocks[0]) == track.start == 2000 + (3 << 54) + 12345


def test_clocks_of_sms_are_laid_on_one_axis() -> None:
    r = Recorder(Shape(2, 2, 1, 32))
    r.track(0, 0, [(1, 10_000)], end=50_000, sm=0)
    r.track(1, 0, [(1, 20_000)], end=60_000, sm=1, skew=10**13)
    t = r.decode(ghz=2.0)
    assert [x["start_us"] for x in t.tracks] == [0.0, pytest.approx(10.0, abs=0.01)] and t.kernel_us == pytest.approx(
        50, abs=0.01
    )


def test_a_coarse_timer_does_not_shift_sms_that_share_a_clock() -> None:
    """%globaltimer in ticks of 1024 ns, the SM clocks in step: the tracks start where their clocks say."""
    r = Recorder(Shape(2, 3, 1, 32))
    for cta in range(3):
        r.track(cta, 0, [(1, 10_000 + 300 * cta)], end=40_000, sm=cta)
    times = r.words.reshape(-1, r.shape.capacity)[:, -3]
    times -= times % 1024
    assert [x["start_us"] for x in r.decode(ghz=2.0).tracks] == [0.0, 0.3, 0.6]


def test_waves_count_towards_the_slot_they_ran_on() -> None:
    r = Recorder(Shape(2, 4, 1, 32))
    for cta in range(4):  # two slots, two waves of 10 us
        begin = 1000 + cta // 2 * 10_000
        r.track(cta, 0, [(1, begin), (2, begin + 2000)], end=begin + 10_000, sm=cta % 2)
    t = r.decode()
    assert t.slots == 2 and t.kernel_us == 20.0
    assert t.roles[0]["us"] == {"wait": 16.0, "issue": 0.0, "compute": 4.0, "store": 0.0, "idle": 0.0}
    assert t.roles[0]["busy"] == 1.0


def test_time_without_a_cta_is_idle_and_lost_spans_are_not_covered() -> None:
    r = Recorder(Shape(2, 2, 1, 32))
    r.track(0, 0, [(1, 1000)], end=9000, sm=0)
    r.track(1, 0, [(1, 3000)], end=11_000, sm=1)
    (role,) = r.decode().timed(10.0, 10.2, 10.5).roles
    assert (role["us"]["compute"], role["us"]["idle"], role["busy"]) == (8.0, 2.0, 0.8)
    assert role["covered"] == pytest.approx(10 / 10.5, abs=1e-4)
    r = Recorder(Shape(2, 1, 1, 32))
    r.track(0, 0, [(1 if i == 0 else 2, 1000 + 100 * i) for i in range(100)], end=11_000)
    assert r.decode().roles[0]["covered"] < 0.5


def test_sampled_ctas_are_scaled_up() -> None:
    r = Recorder(Shape(2, 8, 2, 32))
    for cta in (0, 2, 4, 6):
        begin = 1000 + cta // 4 * 10_000
        r.track(cta, 0, [(1, begin)], end=begin + 10_000, sm=cta)
    t = r.decode(slots=4)
    assert t.recorded_ctas == 4 and [x["cta"] for x in t.tracks] == [0, 2, 4, 6]
    assert t.roles[0]["covered"] == 1.0


def test_damaged_and_empty_buffers_are_refused() -> None:
    r = Recorder(Shape(2, 1, 1, 32))
    with pytest.raises(CakeError, match="did not run"):
        r.decode()
    r.track(0, 0, [(9, 1000)], end=2000)
    with pytest.raises(CakeError, match="no mark wrote"):
        r.decode()


def test_the_clock_is_read_off_two_launches_where_one_is_too_short() -> None:
    early, late = Recorder(Shape(2, 1, 1, 32)), Recorder(Shape(2, 1, 1, 32))
    early.track(0, 0, [(1, 1_000_000)], end=1_000_200)
    late.track(0, 0, [(1, 21_000_000)], end=21_000_700)
    late.words[-32 - 3] -= 500  # a tick of the timer
    a, b = (list(tracks_of(x.words.tobytes(), TABLE, x.shape)) for x in (early, late))
    assert clock_ghz(b, a) == pytest.approx(2.0, rel=1e-4)
    with pytest.raises(CakeError, match="how fast"):
        clock_ghz(b)


def test_buffers_fit_their_budget() -> None:
    table = {"tracks": [["a", 0]] * 3, "marks": [], "sites": 20}
    assert fit(table, 132, 64 << 20, 1 << 14) == Shape(3, 132, 1, 1 << 14)
    many = fit(table, 65536, 64 << 20, 1 << 14)
    assert many.nbytes <= 64 << 20 and many.stride == 16 and many.capacity == 512
    assert fit(table, 10**6, 1 << 20, 64).nbytes <= 1 << 20
    assert fit({**table, "sites": 100}, 1, 1, 1).capacity == 256, "the overrun holds every place of a mark once"


def test_the_stored_form_is_small_and_plain() -> None:
    shape = Shape(2, 64, 1, 8192)
    r = Recorder(shape)
    for cta in range(64):
        for index in range(2):
            records = [(2 * index + 1 + i % 2, 1000 + 100 * i + cta) for i in range(4000)]
            r.track(cta, index, records, end=500_000 + cta, sm=cta)
    t = r.decode()
    text = json.dumps(t.to_json())
    assert len(text) < 2 << 20 and json.loads(text)["recorded_ctas"] == 64
    assert {x["cta"] for x in t.tracks} >= {0, 63}, "the first and the last to end are kept"
    assert set(t.to_json()["roles"][0]["us"]) == {*KINDS, "idle"}


def test_one_long_cta_is_cut_to_its_latest_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lowering.timeline.KEPT_SPANS", 20)
    r = Recorder(Shape(2, 1, 1, 512))
    r.track(0, 0, [(1 + i % 2, 1000 + 100 * i) for i in range(200)], end=30_000)
    (track,) = r.decode().tracks
    assert len(track["spans"]) == 20 and track["dropped"] == 180 and track["spans"][-1][2] == 29.0


def test_the_chrome_trace() -> None:
    r = Recorder(Shape(2, 2, 1, 32))
    r.track(0, 0, [(1, 1000), (2, 2000)], end=5000, sm=3)
    r.track(0, 1, [(3, 1000)], end=5000, sm=3)
    r.track(1, 0, [(1, 1500)], end=4000, sm=4)
    t = r.decode().timed(3.9, 4.0, 4.1)
    trace = json.loads(json.dumps(chrome_trace(t)))
    assert trace == chrome_trace(t.to_json())
    events = trace["traceEvents"]
    assert {e["ph"] for e in events} == {"X", "M"}
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert names == {(0, 1): "p[0]", (0, 2): "m[0]", (1, 1): "p[0]"}
    assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == {"CTA 0 on SM 3", "CTA 1 on SM 4"}
    spans = [e for e in events if e["ph"] == "X"]
    assert len(spans) == 4 and {(e["pid"], e["tid"]) for e in spans} <= set(names)
    wait = next(e for e in spans if e["cat"] == "wait")
    assert (wait["name"], wait["ts"], wait["dur"], wait["args"]["line"]) == ("4: wait", 1.0, 3.0, 4)
    assert trace["otherData"]["overhead"] == pytest.approx(4.0 / 3.9 - 1, abs=1e-4)
