r"""What the predictions of one shape, or of many, are worth. Pure functions; times in microseconds, ratios as fractions.

At a shape let m_i be the measured and p_i the predicted time of candidate i.

Noise. Two candidates cannot be told apart when their measured times differ by less than tau, tau = max(1 %, twice the A/A difference of
the shape): |m_i / m_j - 1| < tau with m_i >= m_j. Such pairs are left out of everything that is about order.

Thinning. Of a shape at most MOST (12) candidates are kept, in the order of drawing: the first MOST / 2 that take more than NEAR (1.5) times
the best, the first others up to MOST, and of the slow ones no more than of the others, so that at least half are near the best: the order
of schedules that nobody would run says little. Fewer than LEAST (8) make no shape. Predictions have no part in it.

Rank correlation. With S_ij = sign(m_i - m_j) and P_ij = sign(p_i - p_j), and both 0 for pairs that cannot be told apart, let r_i and
q_i be the row sums. rho = sum r_i q_i / sqrt(sum r_i^2 sum q_i^2). Where there are no ties, r_i = 2 rank_i - n - 1, so that rho is
Spearman's. Predictions that tie what can be told apart count as no order (q); None where nothing can be told apart.

Regret. m_i / min m - 1 of the candidate that is predicted to be fastest; of several that tie for it, the slowest.

Rank of the best. 1 + the number of candidates that are measurably slower than the fastest and not predicted to be slower than it.

Error. |p_i / m_i - 1|.

Resolution. Over all pairs that can be told apart, right(d) is the share in the right order among pairs whose predictions differ by a
log-ratio d, made monotone by pooling adjacent violators; the resolution is exp(d) - 1 for the least d with right(d) >= 0.9. None of
fewer than LEAST_PAIRS (20) pairs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

NEAR = 1.5
MOST = 12
LEAST = 8
LEAST_NOISE = 0.01
TOP = 3
RIGHT = 0.9
LEAST_PAIRS = 20


@dataclass(frozen=True)
class Sample:
    """The candidates of one shape: measured and predicted microseconds, and the noise tau of the shape."""

    measured: tuple[float, ...]
    predicted: tuple[float, ...]
    noise: float

    def apart(self) -> np.ndarray:
        """[i, j]: whether the measured times of i and j can be told apart."""
        m = np.array(self.measured)
        ratio = np.maximum(m[:, None], m[None, :]) / np.minimum(m[:, None], m[None, :])
        return ratio - 1 >= self.noise


def noise(apart: float) -> float:
    """tau, from the A/A difference of a shape (a fraction)."""
    return max(LEAST_NOISE, 2 * apart)


def thinned(us: Sequence[float]) -> list[int]:
    """The places that are kept, ascending, of times in the order of drawing; none where fewer than LEAST would be."""
    if not us:
        return []
    best = min(us)
    near = [i for i, t in enumerate(us) if t <= NEAR * best]
    far = [i for i, t in enumerate(us) if t > NEAR * best][: MOST // 2]
    near = near[: MOST - len(far)]
    far = far[: len(near)]
    kept = sorted(near + far)
    return kept if len(kept) >= LEAST else []


def spearman(s: Sample) -> float | None:
    """The rank correlation of the module's text."""
    apart = s.apart()
    rows = [
        np.where(apart, np.sign(np.subtract.outer(v, v)), 0.0).sum(axis=1)
        for v in map(np.array, (s.measured, s.predicted))
    ]
    r, q = rows
    if not r.any():
        return None
    size = math.sqrt(float(r @ r) * float(q @ q))
    return float(r @ q) / size if size else 0.0


def regret(s: Sample) -> float:
    """What taking the predicted best loses."""
    first = min(s.predicted)
    chosen = max(m for m, p in zip(s.measured, s.predicted, strict=True) if p == first)
    return chosen / min(s.measured) - 1


def rank_of_best(s: Sample) -> int:
    """Where the fastest stands in the predicted order, 1 first."""
    best = int(np.argmin(s.measured))
    apart = s.apart()[best]
    return 1 + sum(bool(apart[i]) and p <= s.predicted[best] for i, p in enumerate(s.predicted))


def errors(s: Sample) -> list[float]:
    """|predicted / measured - 1| of every candidate."""
    return [abs(p / m - 1) for m, p in zip(s.measured, s.predicted, strict=True)]


def pairs(s: Sample) -> list[tuple[float, bool]]:
    """(log-ratio of the predictions, whether the order is right) of every pair that can be told apart; equal predictions are wrong."""
    apart = s.apart()
    out = []
    for i in range(len(s.measured)):
        for j in range(i):
            if apart[i, j]:
                d = math.log(s.predicted[i] / s.predicted[j])
                out.append((abs(d), d * (s.measured[i] - s.measured[j]) > 0))
    return out


def resolution(found: Sequence[tuple[float, bool]], right: float = RIGHT) -> float | None:
    """The module's resolution of `pairs`; None of too few, and where they are nowhere in the right order often enough."""
    if len(found) < LEAST_PAIRS:
        return None
    counts: dict[float, list[float]] = {}
    for d, ok in found:
        count = counts.setdefault(d, [0.0, 0.0])
        count[0] += ok
        count[1] += 1
    blocks = [[d, *counts[d]] for d in sorted(counts)]  # least distance, right ones, all
    pooled: list[list[float]] = []
    for b in blocks:
        pooled.append(b)
        while len(pooled) > 1 and pooled[-2][1] * pooled[-1][2] >= pooled[-1][1] * pooled[-2][2]:
            last = pooled.pop()
            pooled[-1][1] += last[1]
            pooled[-1][2] += last[2]
    return next((math.expm1(d) for d, good, n in pooled if good >= right * n), None)


@dataclass(frozen=True)
class Summary:
    """Of some shapes together: medians and worst over shapes, errors over candidates. top3: share of shapes whose best stands among
    the first TOP. None where no shape has what is asked."""

    points: int
    shapes: int
    spearman_median: float | None
    spearman_least: float | None
    regret_median: float | None
    regret_worst: float | None
    top3: float | None
    error_median: float | None
    error_p90: float | None
    resolution: float | None


def summarise(samples: Sequence[Sample]) -> Summary:
    """See `Summary`."""
    rho = [r for s in samples if (r := spearman(s)) is not None]
    lost = [regret(s) for s in samples]
    off = [e for s in samples for e in errors(s)]
    return Summary(
        points=len(off), shapes=len(samples), spearman_median=quantile(rho, 0.5), spearman_least=min(rho, default=None),
        regret_median=quantile(lost, 0.5), regret_worst=max(lost, default=None),
        top3=sum(rank_of_best(s) <= TOP for s in samples) / len(samples) if samples else None,
        error_median=quantile(off, 0.5), error_p90=quantile(off, 0.9), resolution=resolution([p for s in samples for p in pairs(s)]),
    )  # fmt: skip


def quantile(values: Sequence[float], share: float) -> float | None:
    """With linear interpolation between neighbours; None of nothing."""
    return float(np.quantile(values, share)) if len(values) else None
