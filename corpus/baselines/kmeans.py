"""k-means assignment of flash-kmeans and FlashLib (Triton kernels), with norms and outputs prepared beforehand.

Both wrappers pick their tuned configuration for the device by shape (`use_heuristic`), which is their authors' fastest
path; only the assignment kernel is launched in `run`.
"""

from __future__ import annotations

from collections.abc import Mapping

from corpus.baselines import Baseline, Plain, Runner, Views


def _flash_kmeans(v: Views, s: Mapping[str, float]) -> Runner:
    from flash_kmeans.assign_euclid_triton import euclid_assign_triton

    x, c, c_sq, label = v["x"], v["c"], v["c_sq"], v["label"]
    # this version's kernel also reads |x|^2, which cannot change the result; it is computed here, outside the timing
    x_sq = x.float().square().sum(-1)
    return Plain(lambda: euclid_assign_triton(x, c, x_sq, out=label, c_sq=c_sq), {"label": label})


def _flashlib(v: Views, s: Mapping[str, float]) -> Runner:
    from flashlib.primitives.kmeans.triton.assign import euclid_assign_triton

    x, c, c_sq, label = v["x"], v["c"], v["c_sq"], v["label"]
    return Plain(lambda: euclid_assign_triton(x, c, out=label, c_sq=c_sq), {"label": label})


BASELINES = (
    Baseline(
        "flash_kmeans", "flash_kmeans.assign_euclid_triton.euclid_assign_triton (Triton)",
        ("torch", "triton", "flash_kmeans"), _flash_kmeans,
    ),
    Baseline(
        "flashlib_triton", "flashlib.primitives.kmeans.triton.assign.euclid_assign_triton (Triton)",
        ("torch", "triton", "flashlib"), _flashlib,
    ),
)  # fmt: skip
