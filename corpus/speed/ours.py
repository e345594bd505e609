"""Our contender: the public package `cake_mcp`, as a user calls it.

What is timed is the dispatcher's choice by the committed route tables, with the cubins that `prepare` compiled. Which variant a
shape takes is asked of `cake_mcp.explain`, so that every row names the programs that ran.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cake_ir.diagnostics import CakeError, error
from corpus.evidence import current_digest
from corpus.kernels import kernel
from corpus.speed.model import Program
from corpus.speed.timing import OURS, Contender
from lowering.cache import CubinCache, user_directory

FAMILIES = ("gemm", "gemm_nn", "kmeans_assign", "kmeans_update", "kmeans_inertia", "row_norms")
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
        """What the dispatcher launches for a shape of a family, its kernels being in the cache.

        Raises CakeError where there is no table, the shape is not served, or a kernel is missing (`speed/not-prepared`).
        """
        variant = (choice := self.mcp.explain(family, shape, DTYPE)).variant
        target = importlib.import_module("cake_mcp.operation").gpu(0).target
        cache = CubinCache(user_directory())
        shas, compilers = {}, {}
        for key in variant.cubin_keys:
            body = cache.get(key)
            if body is None:
                law = "What is measured was compiled beforehand, by a known compiler."
                text = (
                    f"a kernel of {variant.id} is not in {user_directory()}: run `python -m corpus.speed prepare` again"
                )
                raise CakeError(error("speed/not-prepared", "data", text, contract=law))
            shas[hashlib.sha256(base64.b64decode(body["cubin"])).hexdigest()] = True
            compilers[f"NVRTC {body.get('nvrtc', 'unknown')}"] = True
        contract = kernel(variant.kernel).contract
        return (
            Program(
                kernel=variant.kernel, content_id=variant.content_id, variant_id=variant.variant_id, contract=contract,
                contract_digest=current_digest(contract), target=target, bindings=variant.bindings,
                compiler=", ".join(compilers), cubin_sha256=",".join(shas), route=choice.reason,
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
        """A whole k-means of so many updates from t["c"], without a tolerance: at its end the labels of the last centroids and the
        inertia, that is one assignment more."""
        x, c = t["x"], t["c"]
        call: Any = getattr(self.mcp, "kmeans", None)
        families = ("kmeans_assign", "kmeans_update")
        return self._contender(
            call, families, shape, lambda: call(x, init=c, max_iter=iterations, tol=-1.0, strict=True)
        )

    def step(self, torch: Any, t: Mapping[str, Any]) -> Callable[[int], tuple[Any, Any]]:
        """step(iterations) -> (labels, centroids): the iterations of `cake_mcp.kmeans` alone, with the buffers of a call: what the
        loops of other libraries do."""
        assign = importlib.import_module("cake_mcp.assign").ASSIGN
        update = importlib.import_module("cake_mcp.clustering").UPDATE
        x, start = t["x"], t["c"]
        batch, count = start.shape[:2]

        def run(iterations: int) -> tuple[Any, Any]:
            new = {"device": x.device, "dtype": torch.float32}
            spare = [(torch.empty_like(start), torch.empty((batch, count), **new)) for _ in range(2)]
            label = torch.empty(x.shape[:2], device=x.device, dtype=torch.int32)
            size = torch.empty((batch, count), device=x.device, dtype=torch.int32)
            moved, limit = torch.full((batch,), math.inf, **new), torch.full((batch,), -math.inf, **new)
            shift = torch.empty((batch,), **new)
            c, norms = start, None
            for i in range(iterations):
                mean, mean_sq = spare[i % 2]
                assign((x, c, norms), (label,), None, True)
                update((x, label, c, moved, limit), (mean, mean_sq, size, shift), None, True)
                c, norms = mean, mean_sq
            return label, c

        return run

    def iterate(self, shape: Mapping[str, int], torch: Any, t: Mapping[str, Any], iterations: int) -> Contender | str:
        """`step` as a contender."""
        run = self.step(torch, t)
        families = ("kmeans_assign", "kmeans_update")
        return self._contender(run, families, shape, lambda: run(iterations))

    def _contender(
        self, call: Any, families: tuple[str, ...], shape: Mapping[str, int], run: Callable[[], Any]
    ) -> Contender | str:
        """Called once here, so that what a first call loads or refuses shows now."""
        if call is None:
            return "cake_mcp has no such function"
        try:
            run()
            programs = tuple(p for family in families for p in self.programs(family, shape))
        except CakeError as exc:
            return exc.diagnostic.message
        return Contender(OURS, lambda _: run(), programs=programs)
