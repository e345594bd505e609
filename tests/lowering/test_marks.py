"""The instrumented form: where marks stand, that they change nothing, what the machine code holds, and what it records."""

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
from lowering import emit
from lowering.emission import plan
from lowering.emission.marks import op_kind
from lowering.plan import LaunchPlan
from lowering.timeline import Shape, decode, sized, tracks_of
from tests.compiled import compiled
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
    plain, emitted = compiled(emit(bound)), emit(bound, timeline=True)
    marked = compiled(emitted)
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
    resident = compiled(emit(bound)).occupancy.blocks_per_sm
    tight = compiled(emit(bound, timeline=True, resident=resident))
    assert tight.occupancy.blocks_per_sm == resident and tight.resources.spill_store_bytes == 0


@pytest.mark.parametrize("name", ["gemm_sm90", "kmeans_assign"])
def test_a_mark_is_stored_before_its_role_can_hang(name: str) -> None:
    """From the clock's reading to the next barrier instruction the store has been issued: a hung role leaves its mark behind."""
    pytest.importorskip("cuda.bindings.nvrtc")
    read, checked = False, 0
    for i in compiled(emit(corpus_kernel(name), timeline=True)).sass.instructions:
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


def gemm(emitted: Any, shape: Shape | None, dims: tuple[int, int, int], hangs: bool = False) -> tuple[Any, Any]:
    m, n, k = dims
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(m, k)).astype(BF16), rng.normal(size=(n, k)).astype(BF16)
    d = np.full((m, n), np.nan, BF16)
    buffer = aligned(shape) if shape else None
    run(emitted, {"a": a, "b": b, "d": d}, {"M": m, "N": n, "K": k}, None, 2, buffer, shape, hangs)
    return d, buffer


@EMULATED
def test_an_instrumented_gemm_computes_the_same_bits_and_tells_its_whole_life() -> None:
    bound = corpus_kernel("gemm_sm90")
    emitted = emit(bound, timeline=True)
    table = emitted.manifest.timeline
    assert table is not None
    dims = (264, 512, 328)
    grid = 2
    assert plan(emitted, {"M": 264, "N": 512, "K": 328}, {}, 2).grid == grid
    shape = Shape(3, grid, 1, 512)
    want, _ = gemm(emit(bound), None, dims)
    got, buffer = gemm(emitted, shape, dims)
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
def test_a_hung_gemm_leaves_the_place_where_each_role_stands() -> None:
    from corpus.gpu_where import sentence, standing
    from lowering.timeline import marks_of

    text = (Path(__file__).parents[2] / "corpus/kernels/gemm_sm90.cake").read_text()
    emitted = emit(bind_text(text.replace("if k > 0:", "if k > 1:"), "gemm_sm90.cake"), timeline=True)
    table = emitted.manifest.timeline
    assert table is not None
    shape = Shape(3, 2, 1, 128)
    _, buffer = gemm(emitted, shape, (256, 256, 640), hangs=True)
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
def test_a_thread_role_whose_warps_meet_barriers_records_by_its_one_thread() -> None:
    emitted = emit(bind_text(LED), timeline=True)
    table = emitted.manifest.timeline
    assert table is not None and "if (leader)" in emitted.cuda
    kinds = {m["id"]: m["kind"] for m in table["marks"]} | {0: "end"}
    shape = Shape(2, 3, 2, 64)  # CTAs 0 and 2 of three
    buffer = aligned(shape)
    x = np.random.default_rng(2).normal(size=(192, 64)).astype(BF16)
    y = np.zeros_like(x)
    run(emitted, {"x": x, "y": y}, {"M": 192}, None, 3, buffer, shape)
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
    assert emitted.manifest.cooperative and compiled(emitted).ok
    assert [m["wait"]["text"] for m in (emitted.manifest.timeline or {})["marks"] if m["kind"] == "wait"] == [
        "sync(grid)"
    ] * 2
