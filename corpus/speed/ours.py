"""Our contender: the public package `cake_mcp`, as a user calls it.

What is timed is the dispatcher's choice by the committed route tables, with the cubins that `prepare` compiled. Which variant a
shape takes is asked of `cake_mcp.explain`, so that every row names the programs that ran.
"""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cake_ir.diagnostics import CakeError
from corpus.evidence import current_digest
from corpus.kernels import kernel
from corpus.speed.model import Program
from corpus.speed.timing import OURS, Contender

FAMILIES = ("gemm", "gemm_nn", "kmeans_assign", "kmeans_update", "row_norms")
"""Route tables that the calls may take."""

LAYOUTS = {"TN": "gemm", "NN": "gemm_nn"}
CUBINS = "cubins"
DTYPE = "bf16"


def package() -> Any:
    """The public package. It lies above the corpus, which names it as it names any other contender: when it is called."""
    return importlib.import_module("cake_mcp")


def use_cubins(directory: Path) -> None:
    """Let the dispatcher, here and in child processes, find its cubins under a prepared directory."""
    os.environ["CAKE_CACHE_DIR"] = str((directory / CUBINS).resolve())


def prepare(directory: Path, target: str = "sm_90a") -> list[str]:
    """Compile every variant of the tables into `directory`; one line per table. Raises CakeError of the compiler."""
    use_cubins(directory)
    mcp, said = package(), []
    for family in FAMILIES:
        try:
            said += [f"{name}: {count} kernels" for name, count in mcp.prepare(family, target).items()]
        except CakeError as exc:
            if exc.diagnostic.rule != "dispatch/no-table":
                raise
            said.append(exc.diagnostic.message)
    return said


class Product:
    """The public package with the cubins of a prepared directory."""

    def __init__(self, directory: Path) -> None:
        use_cubins(directory)
        self.mcp = package()

    def programs(self, family: str, shape: Mapping[str, int]) -> tuple[Program, ...]:
        """What the dispatcher launches for a shape of a family. Raises CakeError where it has no table or does not serve it."""
        compiled = importlib.import_module("cake_mcp.compiled")
        choice = self.mcp.explain(family, shape, DTYPE)
        variant = choice.variant
        target = importlib.import_module("cake_mcp.operation").gpu(0).target
        shas = [hashlib.sha256(compiled.stored(key) or b"").hexdigest() for key in variant.cubin_keys]
        contract = kernel(variant.kernel).contract
        return (
            Program(
                kernel=variant.kernel, content_id=variant.content_id, variant_id=variant.variant_id, contract=contract,
                contract_digest=current_digest(contract), target=target, bindings=variant.bindings,
                compiler=compiled.table(family, target).compiler, cubin_sha256=",".join(shas), route=choice.reason,
            ),
        )  # fmt: skip

    def assign(self, shape: Mapping[str, int], t: Mapping[str, Any]) -> Contender | str:
        """k-means assignment with the norms given, into t["label"]; or why this shape is not served."""
        x, c, c_sq, label = (t[n] for n in ("x", "c", "c_sq", "label"))
        call: Any = getattr(self.mcp, "kmeans_assign", None)
        return self._contender(call, ("kmeans_assign",), shape, lambda: call(x, c, c_sq=c_sq, out=label, strict=True))

    def gemm(self, layout: str, shape: Mapping[str, int], t: Mapping[str, Any]) -> Contender | str:
        """A product into t["d"]; t["b"] is (N, K), for NN a transposed view."""
        a, b, d = t["a"], t["b"].t(), t["d"]
        call: Any = getattr(self.mcp, "gemm", None)
        return self._contender(call, (LAYOUTS[layout],), shape, lambda: call(a, b, out=d, strict=True))

    def kmeans(self, shape: Mapping[str, int], t: Mapping[str, Any], iterations: int) -> Contender | str:
        """A whole k-means of so many iterations from t["c"], without a tolerance."""
        x, c = t["x"], t["c"]
        call: Any = getattr(self.mcp, "kmeans", None)
        families = ("kmeans_assign", "kmeans_update")
        return self._contender(call, families, shape, lambda: call(x, init=c, max_iter=iterations, tol=0.0))

    def _contender(
        self, call: Any, families: tuple[str, ...], shape: Mapping[str, int], run: Callable[[], Any]
    ) -> Contender | str:
        """Called once here, so that what a first call loads or refuses shows now."""
        if call is None:
            return "cake_mcp has no such function"
        try:
            programs = tuple(p for family in families for p in self.programs(family, shape))
            run()
        except CakeError as exc:
            return exc.diagnostic.message
        return Contender(OURS, lambda _: run(), programs=programs)
