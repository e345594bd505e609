"""CUDA fixtures (`cuda/*.cu`) as sources and launch plans. No tool of the product reaches any of this."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from corpus.contract import Contract
from lowering.plan import Arg, LaunchPlan

CUDA = Path(__file__).parent / "cuda"
TARGET = "sm_90a"
GRID, THREADS = 132, 256
"""The same for every launch: fixtures count launches by finished blocks."""
TOO_MUCH_SMEM = 256 << 10
"""Bytes of shared memory that no block gets (227 KiB is the most on sm_90)."""
SYMBOL = "kernel"


def source(fixture: str, contract: Contract, cache: int = 1) -> str:
    """The CUDA text of a fixture for a contract. cache: elements of the largest output, for those that keep results."""
    cheat = _text(f"{fixture}.cu")
    if "void after(" not in cheat:
        cheat += "__device__ void after(const Problem&) {}\n"
    parts = (
        _text("prelude.cuh"),
        _text(f"workload_{contract.name}.cuh"),
        f"const int CACHE = {cache};\n",
        _text("launch.cuh"),
    )
    return "\n".join([*parts, cheat])


def _text(name: str) -> str:
    return (CUDA / name).read_text(encoding="utf-8")


def plan(contract: Contract, shape: Mapping[str, int], sha256: str, smem_bytes: int = 0) -> LaunchPlan:
    """The launch of any fixture: up to three inputs (the first again where there are fewer), the output, extents."""
    inputs = [t.name for t in contract.tensors if t.direction == "in"]
    tensors = [inputs[i] if i < len(inputs) else inputs[0] for i in range(3)]
    extents = [shape[d] for d in contract.dims] + [0] * (4 - len(contract.dims))
    args = [*(Arg("tensor", n) for n in (*tensors, contract.outputs[0].name)), *(Arg("i32", value=e) for e in extents)]
    return LaunchPlan(SYMBOL, sha256, GRID, 1, THREADS, smem_bytes, False, False, tuple(args))


def plans(
    contract: Contract, shape: Mapping[str, int], sha256: str, refused: bool = False
) -> tuple[dict[str, Any], ...]:
    """The launches of a fixture, in order. refused: followed by one that asks for more shared memory than there is."""
    first = plan(contract, shape, sha256)
    return (first.to_json(), *((plan(contract, shape, sha256, TOO_MUCH_SMEM).to_json(),) if refused else ()))
