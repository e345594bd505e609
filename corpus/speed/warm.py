"""Compile the Triton peers for every shape in parallel, so that the timed process finds them in Triton's cache.

    python -m corpus.speed.warm PART OF [--quick]

One process per part; `compile_all` starts them. They launch each kernel once on small allocations of the right strides, since
what Triton compiles depends on extents, not on values.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from typing import Any

from corpus.contract import Shape
from corpus.speed import shapes


def wanted(quick: bool) -> list[Shape]:
    """The k-means shapes of the tables, the costly ones apart from each other."""
    if quick:
        return [*shapes.QUICK_LARGE, *shapes.quick_contract()]
    return [*shapes.LARGE, *shapes.contract()]


def looped(quick: bool) -> list[Shape]:
    """Those of which whole iterations are timed."""
    return [*shapes.QUICK_LARGE, *shapes.small()[:2]] if quick else [*shapes.LARGE, *shapes.small()]


def warm(part: int, of: int, quick: bool) -> dict[str, str]:
    """Launch both Triton kernels once for every `of`-th shape from `part` on; returns what failed, by shape."""
    import torch

    from corpus.baselines import lloyd
    from corpus.check import shape_text
    from corpus.speed.tables import TRITON

    failed = {}
    loops = looped(quick)
    for shape in wanted(quick)[part::of]:
        b, n, c, d = (shape[k] for k in "BNCD")
        t: dict[str, Any] = {
            "x": torch.zeros((b, n, d), dtype=torch.bfloat16, device="cuda"),
            "c": torch.zeros((b, c, d), dtype=torch.bfloat16, device="cuda"),
            "c_sq": torch.zeros((b, c), device="cuda"), "label": torch.zeros((b, n), dtype=torch.int32, device="cuda"),
        }  # fmt: skip
        todo = {name: functools.partial(_assign, name, t) for name in TRITON}
        if shape in loops:
            todo |= {f"{k.name} loop": functools.partial(k.run, t["x"], t["c"], 1) for k in lloyd.LLOYD}
        for name, call in todo.items():
            try:
                call()
                torch.cuda.synchronize()
            except Exception as exc:  # the timed process will say so of this contender
                failed[f"{name} {shape_text(shape)}"] = f"{type(exc).__name__}: {str(exc)[:200]}"
        del t
    return failed


def _assign(name: str, tensors: dict[str, Any]) -> None:
    from corpus.baselines import registry

    registry()[name].make(tensors, {}).run()


def compile_all(quick: bool, processes: int | None = None, timeout_s: float = 240.0) -> list[str]:
    """Run `processes` (default: the machine's cores, at most 16) parts at once; returns what they said on stderr."""
    count = min(processes or min(os.cpu_count() or 1, 16), len(wanted(quick)))
    command = [sys.executable, "-m", "corpus.speed.warm"]
    started = [
        subprocess.Popen(
            [*command, str(i), str(count), *(["--quick"] if quick else [])], stderr=subprocess.PIPE, text=True
        )
        for i in range(count)
    ]
    said = []
    for p in started:
        try:
            said.append(p.communicate(timeout=timeout_s)[1][-2000:])
        except subprocess.TimeoutExpired:
            p.kill()
            said.append(f"part {p.args} did not end within {timeout_s:g} s")
    return [s for s in said if s.strip()]


if __name__ == "__main__":
    for what, why in warm(int(sys.argv[1]), int(sys.argv[2]), "--quick" in sys.argv).items():
        print(f"{what}: {why}", file=sys.stderr)
