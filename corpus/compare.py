"""Comparison of a kernel's outputs with its oracle: verdict, worst element, and what never was written.

Runs over numpy or torch (see `corpus.arrays.Math`); only the worst element is brought to the host.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from corpus.arrays import POISON_BYTES, Array, Math, bits, element, numpy_dtype
from corpus.contract import Case, Contract, Expected, bad_oracle, gamma


@dataclass(frozen=True)
class Worst:
    """The worst element: `excess` is error over tolerance (> 1 fails), `ulp` the error in units of the last place."""

    tensor: str
    index: tuple[int, ...]
    expected: float
    got: float
    error: float
    tolerance: float
    excess: float
    ulp: float

    def text(self) -> str:
        """For people."""
        place = ", ".join(map(str, self.index))
        return (
            f"{self.tensor}[{place}]: expected {self.expected:.9g}, got {self.got:.9g} "
            f"(error {self.error:.3g}, {self.ulp:.3g} ulp, tolerance {self.tolerance:.3g})"
        )


At = tuple[str, tuple[int, ...]]
"""One element: tensor and index."""


@dataclass(frozen=True)
class Verdict:
    """The comparison of all outputs of one run. `bad` elements of `total` are out of tolerance or not written.

    `cause` is a stable word: ok, mismatch, nonfinite, rms, unwritten, label, shape, schedule, input-changed,
    out-of-bounds, repeat. `facts` carries numbers of interest, `where` the pattern of the bad elements in words, `at`
    (tensor, index) the element to blame: the worst, the first unwritten, or the first that differs between runs.
    `inputs`: SHA-256 of each input's bytes, `launches`: how each run differed from the first, as far as known.
    """

    ok: bool
    message: str
    cause: str = "ok"
    bad: int = 0
    total: int = 0
    worst: Worst | None = None
    facts: Mapping[str, Any] | None = None
    where: str = ""
    at: At | None = None
    inputs: Mapping[str, str] | None = None
    launches: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain JSON; non-finite numbers become strings."""
        return finite_json(asdict(self))


def finite_json(value: Any) -> Any:
    """Replace non-finite floats by the strings inf, -inf, nan, tuples by lists, numpy scalars by Python ones."""
    if isinstance(value, dict):
        return {str(k): finite_json(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite_json(v) for v in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def judge(
    m: Math,
    contract: Contract,
    case: Case,
    inputs: Mapping[str, Array],
    outputs: Mapping[str, Array],
    expected: Mapping[str, Expected] | None = None,
) -> Verdict:
    """Compare outputs with the contract. `expected` may be passed to reuse an oracle result over several runs."""
    for t in contract.outputs:
        want = contract.extents(t, case.shape)
        have = tuple(outputs[t.name].shape) if t.name in outputs else None
        if have != want:
            return Verdict(False, f"{t.name} has shape {have}, the contract says {want}", "shape")
    if contract.empty(case.shape):
        return Verdict(True, "the outputs have no elements", total=0)
    if contract.judge is not None:
        return contract.judge(m, dict(inputs), dict(outputs), contract.scalar_values())
    if expected is None:
        expected = run_oracle(m, contract, inputs)
    verdicts = []
    for t in contract.outputs:
        dtype = contract.dtype(t, case.dtypes)
        verdicts.append(compare(m, t.name, expected[t.name], outputs[t.name], dtype, contract.cap))
    return merge(verdicts)


def run_oracle(m: Math, contract: Contract, inputs: Mapping[str, Array]) -> Mapping[str, Expected]:
    """The oracle's answer; plain arrays are taken as `Expected(value)`."""
    if contract.oracle is None:
        raise ValueError(f"contract {contract.name} has a judge of its own, not an oracle")
    with m.quiet():
        out = contract.oracle(m, dict(inputs), contract.scalar_values())
    wanted = {t.name for t in contract.outputs}
    if not isinstance(out, Mapping) or not wanted <= set(out):
        given = ", ".join(map(str, out)) if isinstance(out, Mapping) else type(out).__name__
        text = f"oracle answers {given or 'nothing'}, but the outputs are {', '.join(sorted(wanted))}"
        raise bad_oracle(contract.name, text, contract.origin)
    return {k: v if isinstance(v, Expected) else Expected(v) for k, v in out.items()}


def merge(verdicts: list[Verdict]) -> Verdict:
    """One verdict over several outputs: the first failure, else the one with the greatest excess."""
    failed = [v for v in verdicts if not v.ok]
    if failed:
        return failed[0]
    return max(verdicts, key=lambda v: v.worst.excess if v.worst else 0.0)


def compare(m: Math, name: str, expected: Expected, got: Array, dtype: str, cap: float) -> Verdict:
    """Elementwise comparison under the tolerance of `corpus.contract` (its module text has the formula).

    NaN: expected NaN needs NaN, any other NaN fails. Inf: where the exact value rounds to an infinity of the output
    type, that infinity is required; a magnitude beyond f32 is outside every contract's domain and never reaches here.
    """
    e = element(dtype)
    exp = expected.value
    total = math.prod(exp.shape)
    if total == 0:
        return Verdict(True, f"{name}: no elements", total=0)
    if not e.is_float:
        return _compare_exact(m, name, exp, got, total)
    with m.quiet():
        got64 = m.f64(got)
        top = e.max
        # round-to-nearest overflows half a unit beyond the largest finite number
        edge = top * (1.0 + e.unit / 2)
        to_inf = m.abs(exp) >= edge
        finite_exp = m.where(m.isnan(exp) | to_inf, 0.0, exp)
        magnitude = m.abs(finite_exp) if expected.magnitude is None else expected.magnitude
        magnitude = m.where(m.isnan(magnitude) | m.isinf(magnitude), 0.0, magnitude)
        g = gamma(expected.length)
        peak = m.scalar(m.max(magnitude.reshape(-1)))
        soft = g * magnitude
        if expected.extra is not None:
            soft = soft + expected.extra
        soft = m.minimum(soft, max(cap * peak, 0.0))
        tol = e.unit * m.abs(finite_exp) + soft + e.tiny
        error = m.abs(got64 - finite_exp)
        special = m.isnan(exp) | to_inf
        right_inf = to_inf & (got64 == m.where(exp > 0, m.inf, -m.inf))
        wrong_special = special & ~((m.isnan(exp) & m.isnan(got64)) | right_inf)
        # a value within tolerance of the largest number may round to infinity, and the other way round
        near_edge = to_inf & (m.abs(exp) - tol <= edge) & (m.abs(got64) >= top * (1 - 2 * e.unit))
        wrong_special = wrong_special & ~near_edge
        excess = m.where(special, 0.0, error / tol)
        excess = m.where(m.isnan(excess) | m.isinf(excess) | wrong_special, m.inf, excess)
        bad_mask = excess > 1.0
        bad = int(m.scalar(m.sum(m.i64(bad_mask).reshape(-1), axis=0)))
        at = int(m.scalar(m.argmax(excess.reshape(-1), axis=0)))
    worst = _worst(m, name, at, exp, got64, tol, excess, e.unit, dtype)
    if bad:
        cause = "nonfinite" if not math.isfinite(worst.got) and math.isfinite(worst.expected) else "mismatch"
        where = pattern(m.cpu(bad_mask))
        with m.quiet():
            moved = misplaced(m.cpu(m.rounded(exp, dtype)), m.cpu(got64)) if total <= MOVED_ELEMENTS else ""
        where += f"; {moved}" if moved else ""
        text = f"{bad} of {total} elements are wrong ({where}); worst {worst.text()}"
        return Verdict(False, text, cause, bad, total, worst, where=where, at=(name, worst.index))
    with m.quiet():
        rms = math.sqrt(_mean_square(m, m.where(special, 0.0, error)))
        ideal = m.rounded(finite_exp, dtype) - finite_exp
        ideal = m.where(m.isinf(ideal) | m.isnan(ideal), e.unit * m.abs(finite_exp), ideal)
        bound = 1.25 * math.sqrt(_mean_square(m, ideal)) + math.sqrt(_mean_square(m, soft)) + e.tiny
    facts = {"rms_error": rms, "rms_bound": bound}
    if rms > bound:
        text = f"{name}: every element is in tolerance but the rms error {rms:.3g} exceeds {bound:.3g}"
        return Verdict(False, text, "rms", 0, total, worst, facts, at=(name, worst.index))
    return Verdict(True, f"all {total} elements match; worst {worst.text()}", "ok", 0, total, worst, facts)


def _mean_square(m: Math, a: Array) -> float:
    """Mean of squares without overflow."""
    peak = float(m.scalar(m.max(m.abs(a).reshape(-1))))
    if peak == 0.0 or not math.isfinite(peak):
        return 0.0
    scaled = a / peak
    return float(m.scalar(m.mean((scaled * scaled).reshape(-1), axis=0))) * peak * peak


def _worst(
    m: Math, name: str, at: int, exp: Array, got: Array, tol: Array, excess: Array, unit: float, dtype: str
) -> Worst:
    def pick(a: Array) -> float:
        return float(m.scalar(a.reshape(-1)[at]))

    index = tuple(int(i) for i in np.unravel_index(at, tuple(exp.shape)))
    want, have, t = pick(exp), pick(got), pick(tol)
    err = abs(have - want) if have != want else 0.0
    # the spacing at the larger of the two, so that a wrong value where 0 is right has a readable distance
    scale = max((abs(v) for v in (want, have) if math.isfinite(v)), default=1.0) or 1.0
    ulp = 2.0 * unit * 2.0 ** math.floor(math.log2(scale))
    return Worst(name, index, want, have, err, t, pick(excess), err / ulp if ulp else math.inf)


def _compare_exact(m: Math, name: str, exp: Array, got: Array, total: int) -> Verdict:
    differs = m.i64(got) != m.i64(exp)
    bad = int(m.scalar(m.sum(m.i64(differs).reshape(-1), axis=0)))
    if not bad:
        return Verdict(True, f"all {total} elements are equal", "ok", 0, total)
    at = int(m.scalar(m.argmax(m.i64(differs).reshape(-1), axis=0)))
    index = tuple(int(i) for i in np.unravel_index(at, tuple(exp.shape)))
    want, have = (float(m.scalar(a.reshape(-1)[at])) for a in (exp, got))
    worst = Worst(name, index, want, have, abs(have - want), 0.0, math.inf, abs(have - want))
    where = pattern(m.cpu(differs))
    text = f"{bad} of {total} elements differ ({where}); first {worst.text()}"
    return Verdict(False, text, "mismatch", bad, total, worst, where=where, at=(name, index))


def unwritten(runs: tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]]) -> Verdict | None:
    """Elements that kept poison 0 in the first run and poison 1 in the second; None when all were written."""
    for name in runs[0]:
        held = np.ones(runs[0][name].shape, dtype=bool)
        for out, byte in zip(runs, POISON_BYTES, strict=True):
            raw = bits(out[name])
            held &= raw == np.array([byte] * raw.dtype.itemsize, dtype=np.uint8).view(raw.dtype)[0]
        count = int(held.sum())
        if count:
            first = tuple(int(i) for i in np.argwhere(held)[0])
            where = pattern(held)
            text = f"{count} of {held.size} elements of {name} were never written ({where}); first at {list(first)}"
            return Verdict(False, text, "unwritten", count, held.size, where=where, at=(name, first))
    return None


_PERIODS = (2, 4, 8, 16, 32, 64, 128, 256)


def pattern(mask: np.ndarray) -> str:
    """Which indices of each dimension hold a marked element: `dim 0: 64..127 of 129; dim 1: all 64`.

    Indices that repeat are given as residues (`= 1, 3 mod 8`): the period usually is a tile, a warp's or a swizzle's.
    """
    parts = []
    for axis, size in enumerate(mask.shape):
        others = tuple(a for a in range(mask.ndim) if a != axis)
        hit = np.flatnonzero(mask.any(axis=others))
        parts.append(f"dim {axis}: {_indices(hit, size)}")
    return "; ".join(parts)


def _indices(hit: np.ndarray, size: int) -> str:
    if len(hit) == size:
        return f"all {size}"
    breaks = np.flatnonzero(np.diff(hit) > 1)
    starts, ends = hit[np.r_[0, breaks + 1]], hit[np.r_[breaks, len(hit) - 1]]
    if len(starts) > 3:
        for period in _PERIODS:
            residues = np.unique(hit % period)
            whole = np.isin(np.arange(size) % period, residues).sum() == len(hit)
            if whole and len(residues) < period < size:
                shown = ", ".join(map(str, residues[:8])) + (", ..." if len(residues) > 8 else "")
                return f"= {shown} mod {period}"
    runs = [str(a) if a == b else f"{a}..{b}" for a, b in zip(starts[:3], ends[:3], strict=True)]
    return f"{', '.join(runs)}{', ...' if len(starts) > 3 else ''} of {size}"


def difference(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> tuple[str, At] | None:
    """None when all arrays are bitwise equal, else a sentence naming the first element that differs, and that element."""
    for name in a:
        differs = bits(a[name]) != bits(b[name])
        if differs.any():
            first = tuple(int(i) for i in np.argwhere(differs)[0])
            x, y = a[name][first], b[name][first]
            text = f"{name}{list(first)} is {x} in one run and {y} in another ({int(differs.sum())} elements differ)"
            return text, (name, first)
    return None


MOVED_ELEMENTS = 1 << 22
"""Outputs up to this size are searched for rows and columns in a wrong place."""


def misplaced(exp: np.ndarray, got: np.ndarray) -> str:
    """Where whole rows or columns are right but in a wrong place, which: `rows hold others: 0 <- 8, 1 <- 9 (row xor 8)`.

    Needs distinct rows (columns), as one-hot and permuted operands give; at least half of the wrong ones must be found.
    """
    if exp.ndim < 2 or exp.shape != got.shape:
        return ""
    a, b = (np.ascontiguousarray(x).reshape(-1, x.shape[-1]) + 0.0 for x in (exp, got))
    for what, x, y in (("row", a, b), ("column", a.T, b.T)):
        home: dict[bytes, int] = {}
        for i, line in enumerate(x):
            home.setdefault(np.ascontiguousarray(line).tobytes(), i)
        wrong = [i for i in range(len(x)) if not np.array_equal(x[i], y[i])]
        moved = {i: j for i in wrong if (j := home.get(np.ascontiguousarray(y[i]).tobytes())) is not None and j != i}
        if len(x) != len(home) or len(moved) < 2 or 2 * len(moved) < len(wrong):
            continue
        law = next(
            (f" ({what} {w} {k})" for w, found in (("xor", {i ^ j for i, j in moved.items()}),
                                                    ("+", {(j - i) % len(x) for i, j in moved.items()}))
             if len(found) == 1 for k in found), "",
        )  # fmt: skip
        shown = ", ".join(f"{i} <- {j}" for i, j in list(moved.items())[:3])
        return f"{what}s hold others: {shown}{', ...' if len(moved) > 3 else ''}{law}"
    return ""


def cast_output(values: np.ndarray, dtype: str) -> np.ndarray:
    """float64 values rounded to an element type (the result of a perfect kernel)."""
    with np.errstate(all="ignore"):
        return np.asarray(values).astype(numpy_dtype(dtype))
