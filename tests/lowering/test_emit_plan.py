"""Launch plans: grid, arguments and tensor maps of concrete shapes; shapes that are turned away."""

from __future__ import annotations

import pytest

from cake_ir.diagnostics import CakeError
from lowering import LaunchPlan, emit, plan
from tests.lowering.emit_helpers import corpus_kernel


def test_kmeans_plan():
    emitted = emit(corpus_kernel("kmeans_assign", WG=2, BC=128, DP=128))
    got = plan(emitted, {"B": 32, "N": 65536, "C": 1024, "D": 128}, {}, 132)
    assert (got.cluster, got.threads) == (1, 384) and 132 <= got.grid <= 32 * 512
    x, c = got.tensor_maps["x_map"], got.tensor_maps["c_map"]
    assert x.dims == (128, 65536, 32) and x.strides == (256, 256 * 65536) and x.box == (64, 128, 1) and x.swizzle == 128
    assert c.dims == (128, 1024, 32) and c.box == (64, 128, 1)
    kinds = [(a.kind, a.name) for a in got.args]
    assert kinds[:4] == [("tensor", "c_sq"), ("tensor", "label"), ("tensor_map", "x_map"), ("tensor_map", "c_map")]
    assert LaunchPlan.from_json(got.to_json()) == got


def test_gemm_grid_follows_the_number_of_sms():
    emitted = emit(corpus_kernel("gemm_sm90"))
    shape = {"M": 4096, "N": 4096, "K": 4096}
    assert plan(emitted, shape, {}, 132).grid == 132
    assert plan(emitted, shape, {}, 11).grid == 10
    assert plan(emitted, {"M": 200, "N": 256, "K": 64}, {}, 132).grid == 2


def test_scalars_travel_as_f32():
    emitted = emit(corpus_kernel("rmsnorm", "sm_90a"))
    got = plan(emitted, {"M": 5, "D": 4096}, {"eps": 1e-6}, 132)
    assert [(a.kind, a.value) for a in got.args if a.kind == "f32"] == [("f32", 1e-6)]


@pytest.mark.parametrize(
    "dims,scalars",
    [
        ({"M": 4, "N": 256, "K": 63}, {}),
        ({"M": 4, "N": 256}, {}),
        ({"M": 4, "N": 256, "K": -8}, {}),
        ({"M": 4, "N": 250, "K": 64}, {}),
    ],
)
def test_shapes_outside_where_are_turned_away(dims, scalars):
    with pytest.raises(CakeError) as caught:
        plan(emit(corpus_kernel("gemm_sm90")), dims, scalars, 132)
    assert caught.value.diagnostic.rule == "lowering/shape-not-admitted"


def test_missing_scalar_is_named():
    with pytest.raises(CakeError, match="eps"):
        plan(emit(corpus_kernel("rmsnorm", "sm_90a")), {"M": 5, "D": 4096}, {}, 132)


def test_a_device_with_fewer_sms_than_a_cluster_is_turned_away_in_words():
    emitted = emit(corpus_kernel("gemm_sm90_cluster"))
    assert emitted.manifest.cluster > 1
    with pytest.raises(CakeError, match=r"divides by zero at .*M=64.* with 1 multiprocessors") as caught:
        plan(emitted, {"M": 64, "N": 64, "K": 64}, {}, 1)
    assert caught.value.diagnostic.rule == "lowering/shape-not-admitted"
