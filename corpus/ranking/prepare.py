"""`python -m corpus.ranking prepare DIR --set SET`: per workload the candidates drawn, compiled, and written as a campaign into
DIR/WORKLOAD, in the form that `corpus.tuning.run` measures."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from cake_ir.diagnostics import CakeError, error
from corpus.contract import contracts
from corpus.families import Shape
from corpus.ranking.draw import Draw, Progress, at_shape
from corpus.ranking.workloads import DRAWS, LARGE, POOL, Set, Workload
from corpus.tuning import campaign as campaigns
from corpus.tuning.campaign import Campaign, Rejected, Settings, ShapeEntry
from corpus.tuning.candidates import Candidate, Rejection
from corpus.tuning.prepare import compiler, record, sample_cost_s
from corpus.tuning.rank import predict_all

SETTINGS = Settings(rounds=8, sample_ms=0.5, gap=0.004, gap_large=0.06)
ONCE_S = 0.03
"""Seconds that a candidate takes at a shape beside its samples: loading, judging, capturing (of tuning's journals)."""
SHAPE_S = 0.4
"""Seconds of a shape: inputs and oracle; START_S: of a process, until its first launch."""
START_S = 8.0


def prepare(
    workload: Workload, directory: Path, *, which: Set, target: str, seed: int, command: str, date: str, commit: str,
    draws: int = DRAWS, most: int = POOL, only: Sequence[Shape] = (), cache_dir: Path | None = None,
    progress: Progress = lambda done, total, what: None,
) -> Campaign:  # fmt: skip
    """Write the campaign of one workload and return it; what the model predicts at that time is part of it.

    Raises CakeError `ranking/no-candidate`, those of `corpus_kernel` and of texts that do not parse; OSError.
    """
    start = time.monotonic()
    shapes = [dict(s) for s in only or workload.shapes(which)]
    draw = Draw(workload, shapes, target, seed)
    drawn = draw.pool(most, cache_dir, progress)
    if not drawn.pool:
        law = "A workload has a kernel that verifies and compiles."
        raise CakeError(
            error("ranking/no-candidate", "data", f"nothing drawn for {workload.name} compiles", contract=law)
        )
    chosen = [
        at_shape(workload.name, s, [(c.id, c.seed.kernel) for c in drawn.pool if i in draw.admitted[c.id]], seed, draws)
        for i, s in enumerate(shapes)
    ]
    used = [c for c in drawn.pool if any(c.id in ids for ids in chosen)]
    predicted = predict_all(used, shapes)
    made = Campaign(
        family=workload.name, target=target, date=date, commit=commit, command=command, compiler=compiler(used), seed=seed,
        settings=SETTINGS, contracts={workload.dtype: {"name": workload.contract, "digest": contracts()[workload.contract].digest}},
        kernels={c.seed.kernel: _kernel(c) for c in used}, candidates=tuple(record(c) for c in used),
        shapes=tuple(
            ShapeEntry(set=LARGE if workload.large(s) else which, dims=s, candidates={workload.dtype: tuple(ids)})
            for s, ids in zip(shapes, chosen, strict=True)
        ),
        predictions={c.id: tuple(predicted[c.id].get(i) for i in range(len(shapes))) for c in used},
        seeds=drawn.tried, legal=drawn.legal, verified=drawn.verified,
        rejected=tuple(_rejected(r) for r in drawn.rejections), prepare_s=round(time.monotonic() - start, 1),
    )  # fmt: skip
    campaigns.write(directory, made, {b.sha256: b.cubin for c in used for b in c.builds})
    return made


def gpu_s(made: Campaign) -> float:
    """Seconds that measuring will take, by the predicted times."""
    total = START_S
    for i, entry in enumerate(made.shapes):
        ids = [n for names in entry.candidates.values() for n in names]
        pause = made.settings.gap_large if entry.set == LARGE else made.settings.gap
        total += SHAPE_S + made.settings.rounds * pause
        total += sum(sample_cost_s(made.predictions[n][i] or 0.0, made.settings) + ONCE_S for n in [ids[0], *ids])
    return total


def rejections(made: Campaign) -> dict[str, int]:
    """How many bindings each gate and rule stopped."""
    found: dict[str, int] = {}
    for r in made.rejected:
        found[f"{r.gate}: {r.rule}"] = found.get(f"{r.gate}: {r.rule}", 0) + 1
    return dict(sorted(found.items()))


def folder_bytes(directory: Path, campaigns_made: Mapping[str, Campaign]) -> int:
    """Size of what was written."""
    return sum(p.stat().st_size for name in campaigns_made for p in (directory / name).rglob("*") if p.is_file())


def _kernel(c: Candidate) -> campaigns.Kernel:
    return campaigns.Kernel(text=c.entry.text(), kernel=c.entry.kernel, content_id=c.content_id)


def _rejected(r: Rejection) -> Rejected:
    s = r.seed
    return Rejected(
        id=s.id, kernel=s.kernel, bindings=dict(s.bindings), dtype=s.dtype, gate=r.gate, rule=r.rule, reason=r.reason[:160],
        hangs=r.hangs,
    )  # fmt: skip
