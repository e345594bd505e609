"""Cheats that Cake IR can say: edits of corpus kernels, bound and interpreted past the verifier (which refutes most)."""

from __future__ import annotations

from dataclasses import dataclass

from cake_ir import bind, parse
from cake_ir.binding import BindResult
from cake_ir.bound import BoundKernel
from cake_ir.diagnostics import CakeError
from corpus.kernels import kernel

TARGET = "sm_90a"


@dataclass(frozen=True)
class Program:
    """A corpus kernel after edits (old text, new text), each of which must apply, and the cause it must be caught by.

    `data/...` is the binder's, `value/...` the interpreter's, a plain word the judge's; `ok` for what is no fault.
    """

    kernel: str
    cause: str
    edits: tuple[tuple[str, str], ...]

    def text(self) -> str:
        """The `.cake` text; raises ValueError when an edit finds nothing."""
        text = kernel(self.kernel).text()
        for old, new in self.edits:
            if old not in text:
                raise ValueError(f"{self.kernel} has no {old!r}")
            text = text.replace(old, new)
        return text

    def bound(self) -> BoundKernel:
        """Bound for sm_90a, not verified; raises CakeError of the first finding when it does not bind."""
        parsed = parse(self.text(), self.kernel)
        done = bind(parsed.file, kernel(self.kernel).bindings, TARGET) if parsed.file else parsed
        if not isinstance(done, BindResult) or done.bound is None:
            raise CakeError(next(d for d in done.diagnostics if d.severity == "error"))
        return done.bound


KMEANS_STORE = "            store(label[b, row + 64 * wg:], index)\n"
SCORE = "score = sq.cols(8 * j, 8)[None, :] - 2.0 * acc.cols(8 * j, 8)"
RMS_STORE = "store(y[cta, col:], cast(cast(v, f32) * scale * cast(g, f32), DT))"
MMA = "                mma(acc, fa, fb)\n"


def _one(kernel: str, cause: str, old: str, new: str) -> Program:
    return Program(kernel, cause, ((old, new),))


PROGRAMS: dict[str, tuple[Program, ...]] = {
    "writes_nothing": (
        _one("kmeans_assign", "value/out-unwritten", KMEANS_STORE, ""),
        _one("rmsnorm", "value/out-unwritten", "        " + RMS_STORE + "\n", ""),
        _one("softmax", "value/out-unwritten", "            store(y[cta, c:], exp2(v - base) * scale)\n", ""),
        _one("gemm_sm80", "value/out-unwritten", "        store(d[row + part:, col:], load(d_s.rows(part, 16), vec(8, 16)[16, BN]))\n", ""),
    ),
    "first_tile_only": (
        _one("gemm_sm80", "value/out-unwritten", "launch(ctas=tiles.count)", "launch(ctas=1)"),
        _one("rmsnorm", "value/out-unwritten", "launch(ctas=M)", "launch(ctas=1)"),
        _one("softmax", "value/out-unwritten", "launch(ctas=M)", "launch(ctas=1)"),
    ),
    "zeros": (
        _one("softmax", "mismatch", "exp2(v - base) * scale)", "(v - v) * scale)"),
        _one("kmeans_assign", "label", "label[b, row + 64 * wg:], index)", "label[b, row + 64 * wg:], index - index)"),
    ),
    "copies_input": (_one("rmsnorm", "mismatch", RMS_STORE, "store(y[cta, col:], v)"),),
    "skips_some": (_one("rmsnorm", "value/out-unwritten", "store(y[cta, col:],", "store(y[cta, col:D - 8],"),),
    "mutates_input": (_one("rmsnorm", "data/write-to-input", RMS_STORE, RMS_STORE + "\n        store(x[cta, col:], g)"),),
    "reads_output": (
        _one("rmsnorm", "data/read-of-output", "v = load(x[cta, col:], vec(8).cols[SLICE])",
             "v = load(x[cta, col:], vec(8).cols[SLICE])\n        seen = load(y[cta, col:], vec(8).cols[SLICE])"),
    ),
    "past_the_end": (_one("rmsnorm", "value/bounds", "store(y[cta, col:],", "store(y[cta + 1, col:],"),),
    "before_the_start": (_one("rmsnorm", "value/bounds", "store(y[cta, col:],", "store(y[cta - 1, col:],"),),
    "missing_sync": (
        _one("rmsnorm", "value/poison", "        sync(rows)\n", ""),
        _one("softmax", "value/poison", "        sync(rows)\n", ""),
        _one("kmeans_assign", "value/poison", "                wait(full[n])\n", ""),
    ),
    "bf16_accumulation": (
        _one("gemm_sm80", "mismatch", MMA, MMA + "                acc = cast(cast(acc, bf16), f32)\n"),
        _one("kmeans_assign", "label", SCORE, SCORE + "\n                    score = cast(cast(score, bf16), f32)"),
        _one("rmsnorm", "mismatch", "part = row_sum(cast(v, f32) * cast(v, f32))",
             "part = cast(cast(row_sum(cast(v, f32) * cast(v, f32)), bf16), f32)"),
    ),
    "skips_the_tail": (
        _one("gemm_sm80", "mismatch", "for k in range(ceil_div(K, BK)):", "for k in range(K // BK):"),
        _one("softmax", "mismatch", "exp2(peaks - base))", "exp2(peaks - base)) * 0.5"),
    ),
    "ignores_an_operand": (
        _one("rmsnorm", "mismatch", " * cast(g, f32), DT", ", DT"),
        _one("kmeans_assign", "label", SCORE, "score = 0.0 - 2.0 * acc.cols(8 * j, 8)"),
    ),
    "skips_all_products": (
        _one("gemm_sm80", "mismatch", MMA, ""),
        Program("kmeans_assign", "label", (("wgmma(acc, points, c_s[n], init=True)\n", "acc = fragment(f32, wgmma_d[64, BC], 0)\n"),)),
    ),
    "spins": (
        _one("kmeans_assign", "value/deadlock", "                expect(full[n])\n", ""),
        _one("gemm_sm90", "value/deadlock", "                expect(full[n])\n", ""),
    ),
    "next_label": (_one("kmeans_assign", "label", "label[b, row + 64 * wg:], index)", "label[b, row + 64 * wg:], index + 1)"),),
    "off_by_one": (_one("softmax", "value/out-unwritten", "store(y[cta, c:],", "store(y[cta, c + 4:],"),),
    "swaps_rows": (_one("rmsnorm", "mismatch", "store(y[cta, col:],", "store(y[M - 1 - cta, col:],"),),
    "nan_where_masked": (
        _one("softmax", "nonfinite", "base = select(top == -inf, 0.0, top)\n        total = row_sum",
             "base = top\n        total = row_sum"),
    ),
    "wrong_at_one_shape": (_one("rmsnorm", "mismatch", "rcp(cast(D, f32))", "rcp(cast(D + D // 1000 % 2, f32))"),),
    "last_of_ties": (_one("kmeans_assign", "ok", "closer = score < best", "closer = score <= best"),),
}  # fmt: skip
"""By the name of the cheat."""
