"""docs/speed.md from the committed tables. Losses come first in every table, and nothing is left out."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from corpus.speed import cute, model, shapes
from corpus.speed.model import Row, Table, Time, geomean
from corpus.speed.tables import CUBLAS, TRITON

WORDS = {
    CUBLAS: "cuBLAS", "flash_kmeans": "flash-kmeans", "flashlib_triton": "FlashLib Triton", cute.NAME: "FlashLib CuTe DSL",
}  # fmt: skip


@dataclass(frozen=True)
class Layout:
    """How one table is shown. peers: the contenders whose fastest is the baseline of a row."""

    title: str
    what: str
    peers: tuple[str, ...]
    columns: tuple[str, ...]
    cells: Callable[[Row, Time], tuple[str, ...]]


def document(directory: Path = model.DIRECTORY) -> str:
    """The whole page."""
    out = [HEAD]
    for name, layout in LAYOUTS.items():
        table = model.read(name, directory)
        out.append(f"## {layout.title}\n\n{layout.what}\n")
        out.append("Not measured yet.\n" if table is None else _section(table, layout))
    return "\n".join(out)


HEAD = """# Speed

Generated from `corpus/results/speed/*.json` (`python -m corpus.speed record`); do not edit. Every number can be measured again:

```
python -m corpus.speed prepare DIR --cute PYTHON   # compile; no GPU. PYTHON: one with nvidia-cutlass-dsl and flashlib
python -m corpus.speed run DIR OUT                 # on the GPU machine
python -m corpus.speed record OUT                  # files and this page
```

A ratio is the peer's time over ours: above 1 Cake is faster. All contenders of a row are timed in one process, interleaved, in
batches of back-to-back launches (a CUDA graph where all can be captured: host cost is then outside), with idle gaps before each
sample of a long-running shape so that no one inherits another's clocks; times are medians, ratios and verdicts follow the timing
gate of [measuring](measuring.md). Inputs are normal bf16 values; centroids are sampled points plus 0.1 of normal noise. Caches are
warm for everybody. Where a kernel of ours asks for it (programmatic dependent launch), it begins while the launch before it ends, which
back-to-back launches show and a lone one does not; the peers' kernels do not ask.
Rows are sorted by ratio, losses first; rows without a ratio come before all.
"""


def _section(table: Table, layout: Layout) -> str:
    order = sorted(table.rows, key=lambda r: _ratio(r, layout) or 0.0)
    lines = [_summary(table, layout), "", _provenance(table), ""]
    lines.append("| " + " | ".join(("shape", *layout.columns)) + " |")
    lines.append("| --- |" + " ---: |" * len(layout.columns))
    lines += [_line(r, layout) for r in order]
    doubts = [f"- {_shape(r)}: {'; '.join(r.faults)}" for r in order if r.faults]
    if doubts:
        lines += ["", "Not counted, because the timing or the check found a fault:", "", *doubts]
    return "\n".join(lines) + "\n"


def _ratio(r: Row, layout: Layout) -> float | None:
    best = r.best(layout.peers)
    return best.ratio if best is not None and r.ours is not None else None


def _counted(table: Table, layout: Layout) -> list[tuple[Row, Time]]:
    return [(r, b) for r in table.rows if r.counts() and (b := r.best(layout.peers)) is not None and b.ratio]


def _summary(table: Table, layout: Layout) -> str:
    """Means by group, how many rows won and lost, what the checks found."""
    counted = _counted(table, layout)
    parts = []
    for group in dict.fromkeys(r.group for r, _ in counted):
        ratios = [b.ratio or 0.0 for r, b in counted if r.group == group]
        name = f"{group} rows: " if group else ""
        parts.append(
            f"{name}geometric mean {geomean(ratios):.3f}, median {statistics.median(ratios):.3f}, {min(ratios):.3f} to "
            f"{max(ratios):.3f} over {len(ratios)} shapes"
        )
    by = {v: sum(1 for _, b in counted if b.verdict == v) for v in ("slower", "inconclusive", "faster")}
    text = (
        "**"
        + "; ".join(parts or ["no row counts"])
        + f".** {by['slower']} slower, {by['inconclusive']} undecided, {by['faster']} faster."
    )
    missing = [r for r in table.rows if r.ours is None]
    if missing:
        text += f" {len(missing)} of {len(table.rows)} shapes are not served."
    return text + _checks([r.ours for r in table.rows if r.ours is not None])


def _checks(times: Iterable[Time]) -> str:
    found = [t.checked for t in times if t.checked]
    rows = sum(c.get("rows", 0) for c in found)
    if rows:
        ties, wrong, lost = (sum(c[k] for c in found) for k in ("ties", "wrong", "unwritten"))
        worst = max(c["worst"] for c in found)
        return (
            f" Labels of all {rows:,} points against float64: {wrong} wrong, {lost} unwritten, {ties:,} ties resolved differently "
            f"(worst excess {worst:.2f} of the bound 2^-15 (|c|² + 2 |x| |c|))."
        )
    elements = sum(c.get("elements", 0) for c in found)
    return f" All {elements:,} products against float64: {sum(c['wrong'] for c in found)} wrong." if elements else ""


def _provenance(table: Table) -> str:
    versions = ", ".join(f"{k} {v}" for k, v in table.versions.items())
    clocks = [r.ours.sm_mhz for r in table.rows if r.ours is not None and r.ours.sm_mhz]
    mhz = f"; SM clock while ours ran {min(clocks):.0f} to {max(clocks):.0f} MHz" if clocks else ""
    return (
        f"{table.device}, driver {table.driver}, {table.compiler or 'compiler not recorded'}; {versions}; {table.date}, commit "
        f"{table.commit[:10] or 'unknown'}{mhz}."
    )


def _line(r: Row, layout: Layout) -> str:
    best = r.best(layout.peers)
    if r.ours is None or best is None:
        why = textwrap.shorten(r.refused or "no peer ran", 120, placeholder=" …")
        cells = (f"not served: {why}" if r.ours is None else why, *([""] * (len(layout.columns) - 1)))
    else:
        cells = layout.cells(r, best)
    return "| " + " | ".join((_shape(r), *cells)) + " |"


def _shape(r: Row) -> str:
    """Files sort their keys; extents are read in the order of the contracts."""
    if "M" in r.shape:
        return f"{' × '.join(str(r.shape[k]) for k in 'MNK')} {r.layout}".strip()
    return ", ".join(f"{k}{r.shape[k]}" for k in "BNCD")


def _us(value: float) -> str:
    return f"{value:.4g}" if value < 1000 else f"{value:.0f}"


def _rate(r: Row, us: float) -> str:
    return f"{r.flops / us / 1e6:.0f}"


def _verdict(t: Time) -> str:
    low, high = t.ratio_interval or (0.0, 0.0)
    ratio = f"{t.ratio:.3f}" if t.ratio else ""
    return f"{ratio} ({low:.3f} to {high:.3f}), {t.verdict}"


def _programs(r: Row) -> str:
    return " + ".join(f"`{p.kernel}`" for p in r.programs)


def _gemm_cells(r: Row, best: Time) -> tuple[str, ...]:
    assert r.ours is not None
    return _us(r.ours.us), _rate(r, r.ours.us), _us(best.us), _verdict(best), _programs(r)


def _large_cells(r: Row, best: Time) -> tuple[str, ...]:
    assert r.ours is not None
    rival, yard = r.peer(cute.NAME), r.peer(CUBLAS)
    product = shapes.YARDSTICK
    share = ""
    if yard is not None:
        share = f"{r.flops / r.ours.us / (2.0 * product['M'] * product['N'] * product['K'] / yard.us):.3f}"
    against = f"{rival.ratio:.3f}, {rival.verdict}" if rival is not None and rival.ratio else "takes B = 1 only"
    return _us(r.ours.us), _rate(r, r.ours.us), _verdict(best), WORDS[best.name], against, share, _programs(r)


def _contract_cells(r: Row, best: Time) -> tuple[str, ...]:
    assert r.ours is not None
    return (
        _us(r.ours.us),
        _us(best.us),
        WORDS[best.name],
        _verdict(best),
        str(r.ours.checked.get("ties", "")),
        _programs(r),
    )


def _iteration_cells(r: Row, best: Time) -> tuple[str, ...]:
    assert r.ours is not None
    rival = r.peer(cute.NAME)
    against = f"{rival.ratio:.3f}, {rival.verdict}" if rival is not None and rival.ratio else "takes B = 1 only"
    return _us(r.ours.us), _us(best.us), WORDS[best.name], _verdict(best), against, _programs(r)


def _call_cells(r: Row, best: Time) -> tuple[str, ...]:
    assert r.ours is not None
    ratio = _verdict(best) if best.verdict else f"{best.ratio:.2f}" if best.ratio else ""
    return r.group, _us(r.ours.us), _us(best.us), WORDS[best.name], ratio


LAYOUTS: dict[str, Layout] = {
    "gemm": Layout(
        "Products", "bf16 products with f32 accumulation beside cuBLAS (`torch.mm` with `out=`), M × N × K. TN: both operands contiguous "
        "along K; NN: the second one along N.", (CUBLAS,), ("Cake µs", "TFLOP/s", "cuBLAS µs", "ratio", "kernel"), _gemm_cells,
    ),
    "large": Layout(
        "k-means assignment, large shapes", "Nearest centroids of B problems of N points, C centroids, D features, beside the "
        "fastest of two Triton kernels (flash-kmeans, FlashLib) and FlashLib's CuTe DSL kernels in the fastest of the configurations that "
        "its autotuner tries. Share: our rate over that of cuBLAS on 4096 × 4096 × 4096, timed in the same rounds.", TRITON,
        ("Cake µs", "TFLOP/s", "ratio to the best Triton", "which", "ratio to CuTe DSL", "share of cuBLAS", "kernel"), _large_cells,
    ),
    "contract": Layout(
        "k-means assignment, shapes of the contract", "Published shapes of exported kernels of the same contract, beside the faster of "
        "the two Triton kernels. Ties: labels that are not the float64 argmin but within the bound.", TRITON,
        ("Cake µs", "best peer µs", "which", "ratio", "ties", "kernel"), _contract_cells,
    ),
    "iteration": Layout(
        "k-means, whole iterations", "Device time of one iteration (norms, assignment, update, greatest shift) in calls of ten from "
        "given centroids without a tolerance: the loop of each library, of ours without what `kmeans` does at its end (labels of the last "
        "centroids, inertia). FlashLib's CuTe DSL loop is its own, around the kernel compiled beforehand.", (*TRITON, cute.NAME),
        ("Cake µs", "best peer µs", "which", "ratio", "ratio to CuTe DSL", "kernels"), _iteration_cells,
    ),
    "calls": Layout(
        "k-means, calls with their host work", "Wall time per public call on small shapes of the contract, until the device is done: of "
        "ten assignments in a row (norms and outputs given), and of one k-means of ten iterations; ours then also gives the labels of the "
        "last centroids and the inertia, which is one assignment more.", TRITON,
        ("what", "Cake µs", "best peer µs", "which", "ratio"), _call_cells,
    ),
    "host": Layout(
        "Host path", "What a call of the smallest problem costs the host. The first call of a process finds everything compiled: our "
        "cubins in the cache, Triton's kernels in Triton's. Import: what the library's import takes once torch is there.", TRITON,
        ("what", "Cake µs", "best peer µs", "which", "ratio"), _call_cells,
    ),
}  # fmt: skip
