"""The check of k-means labels: every row against the float64 argmin, on the device, blockwise.

A label that is not the float64 argmin is a tie when its score exceeds the least by at most TIE * (|c|^2 + 2 |x| |c|), c being the
chosen centroid or the nearest one, whichever weighs more; else it is wrong. Scores are c_sq - 2 x.c with the c_sq that the kernels
were given.
"""

from __future__ import annotations

from typing import Any

TIE = 2.0**-15
POISON = -0x5A5A5A5B
"""What labels hold before the checked launch; no index."""

BLOCK = 1 << 26
"""Scores held at a time (float64)."""


def poison(label: Any) -> None:
    """Fill a label tensor with what no kernel writes."""
    label.fill_(POISON)


def check(torch: Any, x: Any, c: Any, c_sq: Any, label: Any, block: int = BLOCK) -> dict[str, Any]:
    """Judge all labels. x (B, N, D), c (B, C, D), c_sq (B, C) f32, label (B, N) i32, torch tensors on one device.

    Returns rows, unwritten, outside (written, but no index), wrong (beyond a tie; the two before count too), ties (not the
    argmin, within the bound), worst (greatest excess over its bound; at most 1 when none is wrong) and ok.
    """
    batches, points, _ = x.shape
    centroids = c.shape[1]
    step = max(1, block // centroids)
    zero = torch.zeros((), dtype=torch.int64, device=x.device)
    unwritten, outside, wrong, ties = zero.clone(), zero.clone(), zero.clone(), zero.clone()
    worst = torch.zeros((), dtype=torch.float64, device=x.device)
    for b in range(batches):
        wide, sq = c[b].double(), c_sq[b].double()
        size = wide.norm(dim=1)
        for n in range(0, points, step):
            rows = x[b, n : n + step].double()
            got = label[b, n : n + step].long()
            out = (got < 0) | (got >= centroids)
            chosen = torch.where(out, 0, got)
            score = torch.addmm(sq[None, :], rows, wide.t(), alpha=-2.0)
            least, near = score.min(dim=1)
            above = score.gather(1, chosen[:, None])[:, 0] - least
            length = 2.0 * rows.norm(dim=1)
            weight = torch.maximum(size[chosen] * (size[chosen] + length), size[near] * (size[near] + length))
            # where everything is zero a difference cannot be positive, and 0 / 0 is no excess
            excess = torch.where(above > 0, above / (TIE * weight), 0.0)
            bad = out | ~(excess <= 1.0)
            unwritten += (got == POISON).sum()
            outside += (out & (got != POISON)).sum()
            wrong += bad.sum()
            ties += ((above > 0) & ~bad).sum()
            worst = torch.maximum(worst, torch.where(out, 0.0, excess).max())
    counts = {"unwritten": unwritten, "outside": outside, "wrong": wrong, "ties": ties}
    found: dict[str, Any] = {k: int(v) for k, v in counts.items()}
    return {"rows": batches * points, **found, "worst": round(float(worst), 6), "ok": found["wrong"] == 0}
