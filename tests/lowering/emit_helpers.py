"""Bound kernels for the emission tests, from corpus files or from text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cake_ir
from cake_ir.bound import BoundKernel

GRID = """
@kernel(target="sm_90a")
def k(x: InOut[f32, M], y: Out[f32, M]):
    launch(ctas=min(ceil_div(M, 128), device.sms))
    one = role(thread)
    r = role(warp)
    for i in range(cta * 128, M, cta_count * 128):
        with r:
            store(x[i:], load(x[i:], vec(4).cols[128]) * 2.0)
    sync(grid)
    with r:
        store(y[cta * 128:], load(x[cta * 128:], vec(4).cols[128]))
"""

KERNELS = Path(__file__).parents[2] / "corpus" / "kernels"


def bind_text(text: str, name: str = "k.cake", **bindings: Any) -> BoundKernel:
    """The only kernel of a program text; fails with its findings."""
    parsed = cake_ir.parse(text, name=name)
    assert parsed.file is not None, [d.render() for d in parsed.diagnostics]
    target = bindings.pop("target", None)
    result = cake_ir.bind(parsed.file, bindings, target)
    assert result.bound is not None, [d.render() for d in result.diagnostics]
    return result.bound


def corpus_kernel(name: str, target: str | None = None, **bindings: Any) -> BoundKernel:
    """A corpus kernel with its defaults or the given bindings."""
    return bind_text((KERNELS / f"{name}.cake").read_text(), f"{name}.cake", target=target, **bindings)
