"""What a new process pays: `python -m corpus.speed.fresh NAME` prints one JSON object, times in µs.

import: the library's import, torch being there already; first: its first call, until the device is done, with everything
compiled beforehand (cubins in the cache, Triton's kernels in Triton's).
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

SHAPE = {"B": 1, "N": 256, "C": 256, "D": 48}
"""A problem of a few microseconds."""


def _cake() -> Callable[..., Any]:
    cake_mcp: Any = importlib.import_module("cake_mcp")
    return lambda x, c, c_sq, label: cake_mcp.kmeans_assign(x, c, c_sq=c_sq, out=label)


def _flash_kmeans() -> Callable[..., Any]:
    from flash_kmeans.assign_euclid_triton import euclid_assign_triton

    return lambda x, c, c_sq, label: euclid_assign_triton(x, c, x.float().square().sum(-1), out=label, c_sq=c_sq)


def _flashlib() -> Callable[..., Any]:
    from flashlib.primitives.kmeans.triton.assign import euclid_assign_triton

    return lambda x, c, c_sq, label: euclid_assign_triton(x, c, out=label, c_sq=c_sq)


LOADERS = {"cake": _cake, "flash_kmeans": _flash_kmeans, "flashlib_triton": _flashlib}


def measure(name: str) -> dict[str, float]:
    """Import and first call of one library in this process."""
    import torch

    b, n, c, d = (SHAPE[k] for k in "BNCD")
    x = torch.randn((b, n, d), device="cuda").bfloat16()
    centroids = x[:, :c].contiguous()
    sq = centroids.float().square().sum(-1)
    label = torch.empty((b, n), dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()
    start = time.perf_counter()
    call = LOADERS[name]()
    loaded = time.perf_counter()
    call(x, centroids, sq, label)
    torch.cuda.synchronize()
    return {"import": (loaded - start) * 1e6, "first": (time.perf_counter() - loaded) * 1e6}


def sample(names: list[str], rounds: int, timeout_s: float = 60.0) -> dict[str, dict[str, list[float]]]:
    """name -> import and first -> samples; each in a new process, those of a round side by side on cores of their own.

    A library whose process fails is missing.
    """
    found: dict[str, dict[str, list[float]]] = {}
    failed: set[str] = set()
    for _ in range(rounds):
        command = [sys.executable, "-m", "corpus.speed.fresh"]
        started = {
            n: subprocess.Popen([*command, n], stdout=subprocess.PIPE, text=True) for n in names if n not in failed
        }
        for name, process in started.items():
            try:
                text = process.communicate(timeout=timeout_s)[0]
            except subprocess.TimeoutExpired:
                process.kill()
                text = ""
            if process.returncode or not text.strip():
                failed.add(name)
                continue
            for what, us in json.loads(text.strip().splitlines()[-1]).items():
                found.setdefault(name, {}).setdefault(what, []).append(us)
    return {n: v for n, v in found.items() if n not in failed}


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1])))
