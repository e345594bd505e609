"""`cake tune FAMILY --prepare DIR`: seeds through the gates, predictions, the shortlist compiled, everything into a folder."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cake_ir.diagnostics import CakeError, error
from corpus.contract import contracts
from corpus.families import Family, Shape
from corpus.tuning import campaign, rank
from corpus.tuning.campaign import Campaign, Record, Rejected, Settings, ShapeEntry
from corpus.tuning.candidates import Candidate, Rejection, enumerate_seeds, twin, verify_and_compile

Progress = Callable[[float, float | None, str], None]
WARM_SHARE = 2.0
"""A timed sample runs once untimed before it counts."""


def entries(family: Family, only: Sequence[Shape] = ()) -> list[tuple[str, Shape]]:
    """(set, shape) to tune on; only: these shapes instead of the family's. Raises CakeError `tuning/bad-shape`."""
    for shape in only:
        if not family.admits(shape):
            ranges = ", ".join(f"{d} {low}..{high}" for d, (low, high) in family.ranges.items())
            steps = "".join(f", {d} a multiple of {n}" for d, n in family.steps.items())
            law = f"A shape of {family.name} gives {ranges}{steps}."
            raise CakeError(
                error("tuning/bad-shape", "data", f"{dict(shape)} is not served by {family.name}", contract=law)
            )
    if only:
        large = {tuple(sorted(s.items())) for name in family.large for s in family.shapes.get(name, ())}
        return [(family.large[0] if tuple(sorted(s.items())) in large else "given", dict(s)) for s in only]
    return [(name, shape) for name, shapes in family.tuning_shapes().items() for shape in shapes]


def sample_cost_s(us: float, settings: Settings) -> float:
    """GPU seconds of measuring a candidate at one shape: warm-up, then rounds of a sample with its untimed lead."""
    length = max(settings.sample_ms * 1e3, us)
    return (WARM_SHARE * settings.rounds * length + max(settings.warmup_ms * 1e3, us)) * 1e-6


def cost_s(predicted: Mapping[int, float], settings: Settings) -> float | None:
    """GPU seconds of measuring a seed at every tuning shape that it takes, by its predicted times; None without any."""
    return sum(sample_cost_s(us, settings) for us in predicted.values()) if predicted else None


def prepare(
    family: Family, directory: Path, *, target: str, settings: Settings, seed: int, command: str, date: str, commit: str,
    cache_dir: Path | None, only: Sequence[Shape] = (), progress: Progress = lambda done, total, what: None,
) -> Campaign:  # fmt: skip
    """Write the campaign folder and return what is in it.

    Raises CakeError: `tuning/bad-member`, `tuning/bad-shape`, `tuning/no-candidate`; OSError where the folder cannot be written.
    """
    start = time.monotonic()
    shapes = entries(family, only)
    found = enumerate_seeds(family, target, progress)
    dims = [shape for _, shape in shapes]
    sample = ranked_on(dims, [name in family.large for name, _ in shapes], settings.ranked)
    rough = rank.predict_all(found.candidates, [dims[i] for i in sample], progress)
    chosen = rank.shortlist(found.candidates, rough, len(sample), settings.compiled, settings.within)
    predicted: dict[str, dict[int, float]] = {}

    def predict_rest(accepted: Sequence[Candidate]) -> None:
        rest = [i for i in range(len(dims)) if i not in sample]
        fresh = rank.predict_all(accepted, [dims[i] for i in rest], progress)
        for name, found in fresh.items():
            predicted[name] = {sample[k]: us for k, us in rough[name].items()} | {
                rest[k]: us for k, us in found.items()
            }

    verified, compiled, stopped = verify_and_compile(chosen, cache_dir, progress, predict_rest)
    if not compiled:
        raise CakeError(error("tuning/no-candidate", "data", f"no seed of {family.name} passes the gates for {target}",
                              contract="A family has a member that verifies and compiles."))  # fmt: skip
    asked = most_asked(compiled, predicted, len(dims))
    twins, unlike = _twins(family, asked[: settings.twins], target, cache_dir, progress)
    scale = len(dims) / len(sample)
    rejected = [
        _rejected(r, [dims[i] for i in sample], scale, family, settings) for r in (*found.rejections, *stopped, *unlike)
    ]
    order: dict[str, list[tuple[str, ...]]] = {}
    for dtype in family.tuned_dtypes:
        own = [c for c in compiled if c.seed.dtype == dtype]
        most = [_most(family, name, settings) for name, _ in shapes]
        order[dtype] = [tuple(rank.to_measure(own, predicted, i, n, settings.within)) for i, n in enumerate(most)]
    made = Campaign(
        family=family.name, target=target, date=date, commit=commit, command=command, compiler=compiler(compiled), seed=seed,
        settings=settings, contracts={d: {"name": n, "digest": contracts()[n].digest} for d, n in family.contracts.items()},
        kernels={c.seed.kernel: campaign.Kernel(text=c.entry.text(), kernel=c.entry.kernel, content_id=c.content_id) for c in compiled},
        candidates=tuple([record(c, twins, twin=False) for c in compiled] + [record(c, [], twin=True) for c in twins]),
        shapes=tuple(
            ShapeEntry(set=name, dims=shape, candidates={d: order[d][i] for d in order if order[d][i]})
            for i, (name, shape) in enumerate(shapes)
        ),
        predictions={c.id: tuple(_short(predicted[c.id].get(i)) for i in range(len(dims))) for c in compiled},
        seeds=found.seeds, legal=len(found.candidates), verified=verified,
        rejected=tuple(rejected), prepare_s=round(time.monotonic() - start, 1),
    )  # fmt: skip
    code = {b.sha256: b.cubin for c in (*compiled, *twins) for b in c.builds}
    campaign.write(directory, made, code)
    return made


def _most(family: Family, name: str, settings: Settings) -> int:
    return settings.per_large if name in family.large else settings.per_shape


def _short(us: float | None) -> float | None:
    return None if us is None else float(f"{us:.5g}")


def ranked_on(shapes: Sequence[Shape], large: Sequence[bool], most: int) -> list[int]:
    """The shapes on which seeds are ranked before they are compiled: every large one, then again and again the one that is farthest
    from those (by the logarithms of its extents), up to `most`. So no corner is left without a candidate of its own."""
    picked = [i for i, is_large in enumerate(large) if is_large] or [0]
    logs = [[math.log(n) for _, n in sorted(s.items())] for s in shapes]

    def apart(i: int, j: int) -> float:
        return sum((a - b) ** 2 for a, b in zip(logs[i], logs[j], strict=True))

    nearest = [min(apart(i, j) for j in picked) for i in range(len(shapes))]
    while len(picked) < min(most, len(shapes)):
        far = max(range(len(shapes)), key=lambda i: (nearest[i], -i))
        if not nearest[far]:
            break
        picked.append(far)
        nearest = [min(old, apart(i, far)) for i, old in enumerate(nearest)]
    return sorted(picked)


def most_asked(
    compiled: Sequence[Candidate], predicted: Mapping[str, Mapping[int, float]], shapes: int
) -> list[Candidate]:
    """Candidates in the order in which predictions ask for them: by the sum over the shapes of 1 / rank."""
    votes = dict.fromkeys((c.id for c in compiled), 0.0)
    for shape in range(shapes):
        fitting = sorted(
            (c.id for c in compiled if shape in predicted[c.id]), key=lambda n, s=shape: (predicted[n][s], n)
        )
        for i, name in enumerate(fitting):
            votes[name] += 1 / (i + 1)
    return sorted(compiled, key=lambda c: (-votes[c.id], c.id))


def _twins(
    family: Family, compiled: Sequence[Candidate], target: str, cache_dir: Path | None, progress: Progress
) -> tuple[list[Candidate], list[Rejection]]:
    """The compiled schedules for the element types that take their routes, through the same gates."""
    twins: list[Candidate] = []
    rejected: list[Rejection] = []
    for dtype, source in family.alike.items():
        made = [twin(family, c, dtype, target) for c in compiled if c.seed.dtype == source]
        rejected += [m for m in made if isinstance(m, Rejection)]
        _, kept, stopped = verify_and_compile([m for m in made if isinstance(m, Candidate)], cache_dir, progress)
        twins += kept
        rejected += stopped
    return twins, rejected


def _rejected(r: Rejection, sample: Sequence[Shape], scale: float, family: Family, settings: Settings) -> Rejected:
    """The record of a rejection. Its cost is that at the sample of shapes times `scale`; twins would not have been measured."""
    s = r.seed
    cost = None
    if s.dtype in family.alike:
        cost = 0.0
    elif r.executable is not None:
        predicted = rank.predict(r.executable, contracts()[family.contracts[s.dtype]], sample)
        cost = cost_s(predicted, settings)
        cost = None if cost is None else cost * scale
    if r.hangs:
        cost = (cost or 0.0) + settings.hang + settings.restart
    return Rejected(
        id=s.id, kernel=s.kernel, bindings=dict(s.bindings), dtype=s.dtype, gate=r.gate, rule=r.rule, reason=r.reason[:400],
        hangs=r.hangs, cost_s=None if cost is None else round(cost, 4),
    )  # fmt: skip


def record(c: Candidate, twins: Sequence[Candidate] = (), *, twin: bool = False) -> Record:
    """The record of a compiled candidate. twins: those of its schedule are named in it; twin: it is one."""
    mates = {t.seed.dtype: t.id for t in twins if t.seed.kernel == c.seed.kernel and _schedule(t) == _schedule(c)}
    return Record(
        id=c.id, kernel=c.seed.kernel, bindings=dict(c.seed.bindings), dtype=c.seed.dtype, dtypes=c.executable.fits(c.contract),
        content_id=c.content_id, variant_id=c.variant_id, recipe=c.executable.recipe,
        cubins={k: b.sha256 for k, b in zip(_keys(c), c.builds, strict=True)}, resources=tuple(_resources(b) for b in c.builds),
        twins=mates, twin=twin,
    )  # fmt: skip


def _keys(c: Candidate) -> list[str]:
    from lowering.cache import cubin_key
    from lowering.compile import DEFAULT_OPTIONS

    return [cubin_key(e.cuda, e.arch, DEFAULT_OPTIONS) for e in c.executable.emitted]


def _schedule(c: Candidate) -> dict[str, Any]:
    """The bindings without the element type."""
    return {k: v for k, v in c.seed.bindings.items() if v != c.seed.dtype}


def _resources(build: Any) -> dict[str, Any]:
    report = build.report()
    return {**report["resources"], "blocks_per_sm": report["blocks_per_sm"], "limited_by": report["limited_by"]}


def compiler(compiled: Sequence[Candidate]) -> str:
    """Who compiled them."""
    return f"NVRTC {compiled[0].builds[0].compiled.nvrtc_version}"
