"""Launch plans and manifests: JSON both ways, and every limit the driver would answer without a reason."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import pytest

from cake_ir.diagnostics import CakeError
from lowering.plan import Arg, ArgSpec, LaunchPlan, Manifest, MapSpec, TensorMapPlan, validate

PLAN: dict[str, Any] = {
    "symbol": "gemm", "cubin_sha256": "0" * 64, "grid": 132, "cluster": 2, "threads": 384, "smem_bytes": 200000,
    "pdl": False, "cooperative": False,
    "args": [
        {"kind": "tensor", "name": "c"}, {"kind": "i32", "value": 4096}, {"kind": "i64", "value": 1 << 40},
        {"kind": "f32", "value": 0.5}, {"kind": "tensor_map", "name": "a_map"},
    ],
    "tensor_maps": {
        "a_map": {"tensor": "a", "dtype": "bf16", "dims": [4096, 100], "strides": [8192], "box": [64, 128],
                  "swizzle": 128, "fill": "zero"},
    },
}  # fmt: skip


def test_json_round_trip() -> None:
    plan = LaunchPlan.from_json(PLAN)
    assert plan.to_json() == PLAN
    assert LaunchPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    assert plan.tensors == ("c", "a")


def test_non_finite_scalars_survive_strict_json() -> None:
    values = (math.inf, -math.inf, math.nan, 1.5)
    plan = LaunchPlan.from_json(PLAN)
    plan = LaunchPlan(**{**plan.__dict__, "args": tuple(Arg("f32", value=v) for v in values), "tensor_maps": {}})
    text = json.dumps(plan.to_json(), allow_nan=False)
    back = [a.value for a in LaunchPlan.from_json(json.loads(text)).args]
    assert back[:2] == [math.inf, -math.inf] and math.isnan(back[2]) and back[3] == 1.5


def edited(path: str, value: Any) -> dict[str, Any]:
    out = copy.deepcopy(PLAN)
    at: Any = out
    *parents, last = path.split(".")
    for key in parents:
        at = at[int(key)] if isinstance(at, list) else at[key]
    at[int(last) if isinstance(at, list) else last] = value
    return out


@pytest.mark.parametrize(
    ("path", "value", "word"),
    [
        ("symbol", "a b", "identifier"),
        ("symbol", 3, "identifier"),
        ("cubin_sha256", "xyz", "hex"),
        ("grid", 133, "multiple of cluster"),
        ("grid", 0, "outside"),
        ("grid", True, "integer"),
        ("cluster", 17, "outside"),
        ("threads", 100, "multiple of 32"),
        ("threads", 1056, "outside"),
        ("smem_bytes", -1, "outside"),
        ("pdl", 1, "boolean"),
        ("args", {}, "list"),
        ("args.0", {"kind": "raw"}, "kind"),
        ("args.0", {"kind": "tensor", "name": ""}, "name"),
        ("args.0", {"kind": "tensor"}, "missing"),
        ("args.0", {"kind": "tensor", "name": "c", "size": 3}, "unknown"),
        ("args.1.value", 1 << 31, "outside"),
        ("args.1.value", 1.0, "integer"),
        ("args.2.value", 1 << 63, "outside"),
        ("args.3.value", 1e39, "f32"),
        ("args.3.value", "many", "number"),
        ("args.4.name", "b_map", "no tensor map"),
        ("tensor_maps", [], "object"),
        ("tensor_maps.a_map.dtype", "f12", "dtype"),
        ("tensor_maps.a_map.swizzle", 16, "swizzle"),
        ("tensor_maps.a_map.fill", "one", "fill"),
        ("tensor_maps.a_map.dims", [4096], "strides"),
        ("tensor_maps.a_map.dims", [4096, 0], "outside"),
        ("tensor_maps.a_map.strides", [8200], "multiple of 16"),
        ("tensor_maps.a_map.strides", [1 << 40], "outside"),
        ("tensor_maps.a_map.box", [64, 257], "outside"),
        ("tensor_maps.a_map.box", [65, 128], "multiple of 16"),
        ("tensor_maps.a_map.box", [128, 128], "wider"),
        ("tensor_maps.a_map.box", 64, "list"),
        ("tensor_maps.a_map.tensor", None, "string"),
    ],
)
def test_bad_plans_are_refused_by_name(path: str, value: Any, word: str) -> None:
    with pytest.raises(CakeError) as fault:
        LaunchPlan.from_json(edited(path, value))
    assert fault.value.diagnostic.rule == "lowering/bad-plan"
    assert word in fault.value.diagnostic.message


@pytest.mark.parametrize("obj", [None, [], {}, {**PLAN, "extra": 1}])
def test_other_shapes_are_refused(obj: Any) -> None:
    with pytest.raises(CakeError):
        LaunchPlan.from_json(obj)


def test_nan_fill_needs_a_float_map() -> None:
    m = TensorMapPlan("t", "u8", (256,), (), (128,), 128, "nan")
    plan = LaunchPlan("k", "0" * 64, 1, 1, 32, 0, False, False, (), {"m": m})
    with pytest.raises(CakeError, match="floating-point"):
        validate(plan)


def test_manifest_round_trip() -> None:
    manifest = Manifest(
        "gemm", "sm_90a", 384, 2, 200000, "min(sms, M // 128)",
        (ArgSpec("tensor", "c"), ArgSpec("i32", expr="M"), ArgSpec("tensor_map", "a_map")),
        {"a_map": MapSpec("a", "bf16", ("K", "M"), ("2 * K",), (64, 128), 128)}, pdl=True,
    )  # fmt: skip
    assert Manifest.from_json(json.loads(json.dumps(manifest.to_json()))) == manifest
    with pytest.raises(CakeError):
        Manifest.from_json({"symbol": "x"})
