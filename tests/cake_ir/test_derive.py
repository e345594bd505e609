"""Derived facts against numbers worked out by hand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import cake_ir.derive.findings
from cake_ir.bound import BoundKernel, Op, SConst, walk
from cake_ir.derive import Derived, RegisterChange, derive
from cake_ir.derive.memory import buffer_bytes
from tests.analyses.order.programs import SPLIT_K, TURNS, base, bound, edit, line_of


def by_name(table: dict) -> dict[str, int]:
    return {key.name: value for key, value in table.items()}


def sites(kernel: BoundKernel, name: str) -> list[int]:
    return [s.site for s in walk(kernel.body) if isinstance(s, Op) and s.name == name]


@pytest.mark.parametrize(
    ("name", "bindings", "arrivals", "sizes", "used"),
    [
        ("gemm_sm90", {}, {"full": 1, "free": 4}, {16384 + 2 * 16384}, 4 * (16384 + 32768) + 2 * 16384 + 8 * 8),
        ("kmeans_assign", {}, {"x_full": 1, "full": 1, "free": 8}, {32768}, 5 * 32768 + 9 * 8),
        (
            "kmeans_assign",
            {"WG": 3, "STAGES": 2},
            {"x_full": 1, "full": 1, "free": 12},
            {49152, 32768},
            49152 + 65536 + 5 * 8,
        ),
        ("gemm_sm100", {"CG": 1}, {"full": 1, "free": 1, "done": 1, "drained": 4}, {49152}, 229472 + 8),
        ("gemm_sm100", {"CG": 2}, {"full": 1, "free": 1, "done": 1, "drained": 8}, {65536}, 163936 + 8),
    ],
)
def test_counts_bytes_and_memory(
    name: str, bindings: dict[str, int], arrivals: dict[str, int], sizes: set[int], used: int
) -> None:
    d = derive(bound(base(name), **bindings))
    assert d.diagnostics == ()
    assert by_name(d.arrivals) == arrivals
    assert set(d.expect_bytes.values()) == sizes
    assert d.smem_used == used
    assert d.smem_bytes >= d.smem_used + d.align - 16


def test_a_release_that_only_the_third_tile_makes_is_counted() -> None:
    """Rings of 2, 4 and 6 stages have more goals than the limit: goals about tiles come on top of it."""
    text = (Path(__file__).parents[2] / "corpus" / "kernels" / "kmeans_split.cake").read_text()
    d = derive(bound(text, DP=64, S=2, G=2, WG=1, STAGES=6))
    assert d.diagnostics == ()
    assert by_name(d.arrivals)["merged"] == 4 and by_name(d.arrivals)["parts"] == 1
    # four warpgroups of the cluster send 64 scores and 64 indices each
    assert 4 * 2 * 64 * 4 in d.expect_bytes.values()


def test_two_loaders_expect_their_own_bytes() -> None:
    kernel = bound(SPLIT_K)
    d = derive(kernel)
    assert by_name(d.arrivals) == {"full": 2, "free": 1}
    assert [d.expect_bytes[s] for s in sites(kernel, "expect")] == [16 * 64 * 2, 8 * 64 * 2]
    assert d.launch.pdl and d.launch.cluster == 2


def test_buffers_lie_at_their_swizzle_period_and_do_not_overlap() -> None:
    kernel = bound(base("gemm_sm90"))
    d = derive(kernel)
    end = 0
    for b in kernel.buffers:
        assert d.smem[b] % 1024 == 0 and d.smem[b] >= end
        end = d.smem[b] + buffer_bytes(b)
    assert min(d.barrier_offset.values()) >= end


def test_overlay_starts_at_the_other() -> None:
    kernel = bound(base("gemm_sm80"))
    d = derive(kernel)
    offsets = by_name(d.smem)
    assert offsets["d_s"] == offsets["a_s"] == 0
    assert d.smem_used == 2 * 4 * 16384


def test_rounded_stages_of_an_overlay_must_fit() -> None:
    text = edit(base("gemm_sm80"), "d_s = smem(bf16, BM, BN, swizzle=128, over=a_s)",
                "d_s = smem(bf16, BM, BN, swizzle=128, over=a_s)\n    x_s = smem(bf16, 12, 64)\n"
                "    y_s = smem(bf16, 4, 64, stages=3, swizzle=128, over=x_s)")  # fmt: skip
    (found,) = derive(bound(text)).diagnostics
    assert found.rule == "derive/overlay-too-large"
    assert "2560 B" in found.message and "1536 B" in found.message


def test_tensor_memory_is_a_power_of_two() -> None:
    d = derive(bound(base("gemm_sm100"), BN=128))
    assert d.tmem_columns == 256 and list(d.tmem.values()) == [0]
    assert d.tmem_owner is not None and d.tmem_owner.name == "issuer"
    assert d.tmem_slot is not None
    assert derive(bound(base("kmeans_assign"))).tmem_columns == 0


def test_named_barriers_count_all_who_name_them() -> None:
    kernel = bound(TURNS)
    d = derive(kernel)
    turn = kernel.barriers[0]
    assert d.named[("named", turn, 0)] == (1, 256)
    assert d.named[("named", turn, 1)] == (2, 256)
    assert d.named[("warpgroup", "math", 0)] == (3, 128)
    assert d.named[("warpgroup", "math", 1)] == (4, 128)


def test_registers_at_launch() -> None:
    launch = derive(bound(base("gemm_sm90"))).launch
    assert (launch.threads, launch.r0) == (384, 168)
    assert launch.setmaxnreg == {"producer": RegisterChange("dec", 40), "math": RegisterChange("inc", 232)}


def test_one_map_per_tensor_box_and_swizzle() -> None:
    kernel = bound(base("gemm_sm90"))
    d = derive(kernel)
    assert [(m.tensor.name, m.box, m.swizzle) for m in d.tensor_maps] == [
        ("a", (64, 128), 128), ("b", (64, 128), 128), ("d", (64, 64), 128)]  # fmt: skip
    assert len({m.name for m in d.tensor_maps}) == 3
    assert {d.op_maps[s] for s in sites(kernel, "tma_store")} == {2}


def test_wide_tiles_are_copied_panel_by_panel() -> None:
    kernel = bound(base("kmeans_assign"))
    d = derive(kernel)
    (site,) = [s for s in sites(kernel, "tma_load") if s in d.copies][:1]
    assert d.tensor_maps[d.op_maps[site]].box == (64, 128, 1)
    assert [(c.offset, c.coords) for c in d.copies[site]] == [(0, (0, 0, 0)), (128 * 128, (64, 0, 0))]


def test_guards_of_tensor_maps() -> None:
    d = derive(bound(base("kmeans_assign")))
    strides = {(g.tensor.name, g.dim) for g in d.guards if g.kind == "stride"}
    assert {("x", 0), ("x", 1), ("c", 0), ("c", 1)} <= strides
    assert all(g.modulus == 16 and not isinstance(g.value, SConst) for g in d.guards if g.kind == "stride" and g.value)


def findings(text: str) -> tuple[Derived, list[tuple[str, str]]]:
    d = derive(bound(text))
    return d, [(x.rule, line_of(text, x)) for x in d.diagnostics]


def test_asserted_counts_are_compared() -> None:
    text = edit(base("kmeans_assign"), "free = mbarrier(stages=STAGES)", "free = mbarrier(stages=STAGES, arrivals=2)")
    d, found = findings(text)
    assert found == [("derive/asserted-arrivals", "free = mbarrier(stages=STAGES, arrivals=2)")]
    assert "arrivals=2" in d.diagnostics[0].message and "8 arrive" in d.diagnostics[0].message


def test_unequal_counts_name_the_op_that_is_missing() -> None:
    text = edit(
        base("kmeans_assign"),
        "            arrive(free[n])",
        "            if n > 0 or wg == 0:\n                arrive(free[n])",
    )
    d, found = findings(text)
    assert found == [("derive/unequal-arrivals", "arrive(free[n])")]
    assert "free[0] of CTA 0 gets 4 arrivals" in d.diagnostics[0].message


def test_bytes_that_nobody_expects() -> None:
    text = edit(base("gemm_sm90"), "signal=full[n])", "signal=free[n])")
    assert ("derive/unexpected-bytes", "tma_load(a_s[n], a[row:, k * BK:], signal=free[n])") in findings(text)[1]


def test_expecting_twice() -> None:
    text = edit(
        base("kmeans_assign"), "            expect(full[n])", "            expect(full[n])\n            expect(full[n])"
    )
    rules = [r for r, _ in findings(text)[1]]
    assert "derive/double-expect" in rules


def test_barrier_traffic_under_data() -> None:
    text = edit(
        base("kmeans_assign"),
        "            arrive(free[n])",
        "            if row_sum(pick_me(acc)) > 0.0:\n                arrive(free[n])".replace(
            "row_sum(pick_me(acc))", "load(c_sq[b, n])"
        ),
    )
    assert ("derive/data-dependent", "arrive(free[n])") in findings(text)[1]


LONG = """
@kernel(target="sm_90a")
def spin(x: In[f32, M, 128], y: Out[f32, M, 128]):
    launch(ctas=M)
    one = role(warp, count=8)
    with one as w:
        for i in range(3000):
            store(y[cta, :], load(x[cta, :], vec(4).cols[128]))
"""


def test_runs_beyond_the_limit_are_said_to_be_undecided() -> None:
    d = derive(bound(LONG))
    (found,) = d.diagnostics
    assert (found.rule, found.severity) == ("derive/no-witness", "warning")
    assert "longer than 20000 events in the loop of line 7" in found.message and found.related[0].span.line == 7
    assert d.no_shape.startswith("longer than 20000 events in the loop of line 7")
    assert d.ok and d.unmet_goals


def test_every_rule_id_is_in_the_table() -> None:
    root = Path(cake_ir.derive.findings.__file__).parent
    used = {m for f in root.glob("*.py") for m in re.findall(r'"((?:derive|sync)/[a-z-]+)"', f.read_text())}
    assert used == set(cake_ir.derive.findings.CONTRACTS)
