"""Built-in contracts, the judge's self-test, operator contracts and signatures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cake_ir.diagnostics import CakeError
from corpus.arrays import Math
from corpus.check import judge_selftest, named_shapes, perfect
from corpus.compare import judge
from corpus.contract import SHAPE_SETS, Case, Contract, contracts
from corpus.signature import match, refused, solve_dims
from tests.corpus.bound_fixture import divisible, gemm, make_bound

ALL = contracts()


def cases(c: Contract) -> list[Case]:
    return [
        Case(dict(s), d, 7, 11, dt) for s in c.shapes["boundary"] for d in c.distributions for dt in c.dtype_choices()
    ]


@pytest.mark.parametrize("name", ALL)
def test_the_rounded_exact_result_passes_on_every_distribution(name: str) -> None:
    c = ALL[name]
    for case in cases(c):
        inputs = c.inputs(case)
        outputs, expected = perfect(c, case, inputs)
        v = judge(Math(), c, case, inputs, outputs, expected)
        assert v.ok, f"{case}: {v.message}"


@pytest.mark.parametrize("name", ALL)
def test_the_judge_rejects_wrong_results(name: str) -> None:
    for dtypes in ALL[name].dtype_choices():
        assert "rejects a no-op and one wrong tile" in judge_selftest(ALL[name], dtypes=dtypes)


def test_a_lenient_judge_is_caught() -> None:
    lenient = replace(ALL["gemm_bf16"], oracle=lambda m, t, s: {"d": _anything(m, t)})
    with pytest.raises(CakeError, match="contract/judge-broken"):
        judge_selftest(lenient)


def _anything(m: Math, t: dict[str, np.ndarray]) -> object:
    from corpus.contract import Expected

    d = np.asarray(t["a"], np.float64) @ np.asarray(t["b"], np.float64).T
    return Expected(d, extra=np.full(d.shape, 1e9), magnitude=np.full(d.shape, 1e30))


@pytest.mark.parametrize("name", ALL)
def test_contract_declarations(name: str) -> None:
    c = ALL[name]
    assert all(c.shapes[s] for s in SHAPE_SETS)
    assert max(c.bytes(s) for s in c.shapes["boundary"]) < 600_000
    assert not {tuple(s.items()) for s in c.shapes["tuning"]} & {tuple(s.items()) for s in c.shapes["heldout"]}
    assert c.digest == contracts()[name].digest and c.digest.startswith("ct_")
    assert c.describe()["tensors"] and c.flops(c.shapes["tuning"][0]) > 0


def test_gemm_bf16_accumulation_in_bf16_is_rejected() -> None:
    c = ALL["gemm_bf16"]
    case = Case({"M": 32, "N": 32, "K": 512}, "normal", 1, 2)
    t = c.inputs(case)
    acc = np.zeros((32, 32), t["a"].dtype)
    for k in range(0, 512, 16):
        part = t["a"][:, k : k + 16].astype(np.float32) @ t["b"][:, k : k + 16].astype(np.float32).T
        acc = (acc.astype(np.float32) + part).astype(acc.dtype)
    assert not judge(Math(), c, case, t, {"d": acc}).ok
    exact = t["a"].astype(np.float32) @ t["b"].astype(np.float32).T
    assert judge(Math(), c, case, t, {"d": exact.astype(acc.dtype)}).ok


def test_kmeans_ties_and_wrong_labels() -> None:
    c = ALL["kmeans_assign"]
    case = Case({"B": 1, "N": 64, "C": 30, "D": 64}, "duplicates", 1, 2)
    t = c.inputs(case)
    score = t["c_sq"][0].astype(np.float64) - 2 * t["x"][0].astype(np.float64) @ t["c"][0].astype(np.float64).T
    last = (29 - np.argmin(score[:, ::-1], axis=1)).astype(np.int32)[None]
    assert judge(Math(), c, case, t, {"label": last}).ok
    worst = np.argmax(score, axis=1).astype(np.int32)[None]
    v = judge(Math(), c, case, t, {"label": worst})
    assert v.cause == "label" and v.bad == 64 and "above the nearest" in v.message
    outside = last.copy()
    outside[0, 3] = 30
    v = judge(Math(), c, case, t, {"label": outside})
    assert v.bad == 1 and "outside 0..29" in v.message
    bf16 = t["x"].dtype
    rough = np.argmin(score.astype(bf16).astype(np.float32), axis=1).astype(np.int32)[None]
    assert not judge(Math(), c, case, t, {"label": rough}).ok


def test_softmax_masked_row_is_zero() -> None:
    c = ALL["softmax"]
    case = Case({"M": 2, "N": 8}, "masked_rows", 1, 2)
    t = c.inputs(case)
    assert np.isneginf(t["x"][-1]).all()
    out, expected = perfect(c, case, t)
    assert not out["y"][-1].any()
    out["y"][-1] = np.nan
    assert judge(Math(), c, case, t, out, expected).cause == "nonfinite"


def test_operator_contracts_load_and_errors_name_the_line(tmp_path: Path) -> None:
    good = "from dataclasses import replace\nfrom corpus.contracts.softmax import CONTRACT as S\n"
    (tmp_path / "mine.py").write_text(good + "CONTRACT = replace(S, name='mine')\n")
    found = contracts(tmp_path)
    assert "mine" in found and found["mine"].origin.endswith("mine.py") and found["softmax"].origin == "built in"
    (tmp_path / "mine.py").write_text(good + "CONTRACT = replace(S, name='softmax')\n")
    with pytest.raises(CakeError, match="is taken"):
        contracts(tmp_path)
    (tmp_path / "mine.py").write_text("x = 1\n\ny = 1 / 0\n")
    with pytest.raises(CakeError, match=r"mine.py:3: failed to load: ZeroDivisionError"):
        contracts(tmp_path)
    (tmp_path / "mine.py").write_text("def f(:\n")
    with pytest.raises(CakeError, match=r"mine.py:1: failed to load: SyntaxError"):
        contracts(tmp_path)
    (tmp_path / "mine.py").write_text("x = 1\n")
    with pytest.raises(CakeError, match="must define CONTRACT"):
        contracts(tmp_path)
    with pytest.raises(CakeError, match="is not a directory"):
        contracts(tmp_path / "nowhere")


def test_bad_declarations_say_all_that_is_wrong() -> None:
    with pytest.raises(ValueError, match=r"undeclared dimension 'M'.*must give exactly the dimensions"):
        replace(ALL["softmax"], dims={"N": "only"})


def test_signature_matches_by_name_and_solves_dims() -> None:
    c = ALL["gemm_bf16"]
    bound = gemm(where=divisible("Q", 8))
    assert match(bound, c)
    dims = solve_dims(bound, c, {"M": 3, "N": 5, "K": 8})
    assert dims == {"P": 3, "Q": 8, "R": 5}
    assert refused(bound, dims, {}) is None
    assert "line 50" in (refused(bound, {**dims, "Q": 9}, {}) or "")


@pytest.mark.parametrize(
    ("change", "line", "text"),
    [
        ({"a": ("a", "In", "f16", ("M", "K"))}, 10, "elements f16, the contract says bf16"),
        ({"a": ("a", "Out", "bf16", ("M", "K"))}, 10, "a is Out, the contract says In or Const"),
        ({"b": ("b", "In", "bf16", ("N",))}, 11, "1 dimensions, the contract says 2"),
        (
            {"b": ("w", "In", "bf16", ("N", "K"))},
            9,
            "needs the tensor b: in[bf16, N, K]; the kernel's other tensors: w",
        ),
    ],
)
def test_signature_mismatch_is_located(change: dict, line: int, text: str) -> None:
    rows = {
        "a": ("a", "In", "bf16", ("M", "K")),
        "b": ("b", "In", "bf16", ("N", "K")),
        "d": ("d", "Out", "bf16", ("M", "N")),
    }
    found = match(make_bound(list({**rows, **change}.values())), ALL["gemm_bf16"]).diagnostics
    assert found and found[0].rule == "contract/signature-mismatch"
    assert found[0].span.line == line and text in found[0].message


def test_signature_scalars_and_dtype_parameters() -> None:
    rows = [("x", "In", "f16", ("M", "D")), ("gain", "In", "f16", ("D",)), ("y", "Out", "f16", ("M", "D"))]
    fit = match(make_bound(rows, [("eps", "f32")]), ALL["rmsnorm"])
    assert fit and fit.dtypes == {"DT": "f16"}
    assert "needs the scalar eps" in match(make_bound(rows), ALL["rmsnorm"]).diagnostics[0].message
    rows[2] = ("y", "Out", "bf16", ("M", "D"))
    (d,) = match(make_bound(rows, [("eps", "f32")]), ALL["rmsnorm"]).diagnostics
    assert "y has elements bf16 but x has f16" in d.message and d.related


def test_bad_shapes_are_coded() -> None:
    c = ALL["softmax"]
    assert named_shapes(c, "boundary") == c.shapes["boundary"]
    for bad in ("huge", [{"M": 1}], [{"M": 1, "N": -4}], [{"M": 1, "N": 4.0}]):
        with pytest.raises(CakeError, match="contract/bad-shape"):
            named_shapes(c, bad)  # type: ignore[arg-type]


OPERATOR = """from dataclasses import replace
from corpus.contracts.softmax import CONTRACT as S


def oracle(m, t, s):
    return {BODY}


CONTRACT = replace(S, name="mine", oracle=oracle)
"""


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("m.rsqrt(t['x'])", r"mine.py:6: contract mine: oracle failed: AttributeError: .*rsqrt"),
        ("{'z': t['x']}", r"mine.py: contract mine: oracle answers z, but the outputs are y"),
        ("None", r"oracle answers NoneType"),
    ],
)
def test_a_mistake_in_an_operators_oracle_is_located(tmp_path: Path, body: str, says: str) -> None:
    (tmp_path / "mine.py").write_text(OPERATOR.replace("{BODY}", body))
    with pytest.raises(CakeError, match=says) as caught:
        judge_selftest(contracts(tmp_path)["mine"])
    assert caught.value.diagnostic.rule == "contract/bad-oracle"


def test_flops_are_guarded_and_the_digest_sees_through(tmp_path: Path) -> None:
    text = OPERATOR.replace("{BODY}", "{}")
    (tmp_path / "mine.py").write_text(text)
    before = contracts(tmp_path)["mine"].digest
    (tmp_path / "mine.py").write_text(text.replace("return {}", "return {'y': 1}"))
    assert contracts(tmp_path)["mine"].digest != before
    (tmp_path / "mine.py").write_text(text.replace("oracle=oracle)", "flops=lambda s: s['nope'])"))
    with pytest.raises(CakeError, match=r"mine.py:9: contract mine: flops failed: KeyError"):
        contracts(tmp_path)["mine"].flops({"M": 1, "N": 1})


def test_a_bad_file_hides_only_itself_and_relative_paths_keep_their_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/bad.py").write_text("x = 1\n\ny = 1 / 0\n")
    (tmp_path / "d/mine.py").write_text(OPERATOR.replace("{BODY}", "{}"))
    monkeypatch.chdir(tmp_path)
    bad: list = []
    assert {"mine", "softmax"} <= set(contracts("d", bad))
    assert [d.message for d in bad] == ["d/bad.py:3: failed to load: ZeroDivisionError: division by zero"]
    assert bad[0].span.line == 3
