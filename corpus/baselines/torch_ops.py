"""torch (cuBLAS, fused row kernels, device copies)."""

from __future__ import annotations

from collections.abc import Mapping

from corpus.baselines import Baseline, Plain, Runner, Views


def _matmul(v: Views, s: Mapping[str, float]) -> Runner:
    import torch

    a, bt, d = v["a"], v["b"].t(), v["d"]
    return Plain(lambda: torch.mm(a, bt, out=d), {"d": d})


def _matmul_nn(v: Views, s: Mapping[str, float]) -> Runner:
    import torch

    a, b, d = v["a"], v["b"], v["d"]
    return Plain(lambda: torch.mm(a, b, out=d), {"d": d})


def _rms_norm(v: Views, s: Mapping[str, float]) -> Runner:
    import torch.nn.functional as f

    x, gain, eps = v["x"], v["gain"], s["eps"]
    width = (x.shape[-1],)
    # torch has no out= here; its caching allocator hands back the same block each time
    return Plain(lambda: f.rms_norm(x, width, gain, eps), {}, result="y")


def _softmax(v: Views, s: Mapping[str, float]) -> Runner:
    import torch

    x, y = v["x"], v["y"]
    return Plain(lambda: torch.softmax(x, -1, out=y), {"y": y})


def _col_sums(v: Views, s: Mapping[str, float]) -> Runner:
    import torch

    x, y = v["x"], v["y"]

    def run() -> None:
        y.add_(torch.sum(x, 0, dtype=torch.float32))

    return Plain(run, {"y": y})


def _copy(v: Views, s: Mapping[str, float]) -> Runner:
    x, y = v["x"], v["y"]
    return Plain(lambda: y.copy_(x), {"y": y})


BASELINES = (
    Baseline("torch_matmul", "torch.mm(a, b.T, out=d): cuBLAS with its own choice of algorithm", ("torch",), _matmul),
    Baseline(
        "torch_matmul_nn", "torch.mm(a, b, out=d): cuBLAS with its own choice of algorithm", ("torch",), _matmul_nn
    ),
    Baseline("torch_rms_norm", "torch.nn.functional.rms_norm", ("torch",), _rms_norm),
    Baseline("torch_softmax", "torch.softmax(x, -1, out=y)", ("torch",), _softmax),
    Baseline("torch_col_sums", "y.add_(torch.sum(x, 0, dtype=torch.float32)): two kernels", ("torch",), _col_sums),
    Baseline("device_copy", "y.copy_(x): the bytes of the contract without its arithmetic", ("torch",), _copy, False),
)
