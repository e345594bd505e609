"""The measuring of each table on a device: `Session` holds what they share, a method per table yields rows."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from corpus import compare
from corpus.arrays import TorchMath
from corpus.baselines import Baseline, registry
from corpus.check import shape_text
from corpus.contract import Case, Contract, Shape, contracts
from corpus.gpu_buffers import Env
from corpus.speed import cute, labels, ours, shapes, whole
from corpus.speed.model import Row
from corpus.speed.timing import OURS, Contender, Pace, row

CUBLAS = "torch_matmul"
TRITON = ("flash_kmeans", "flashlib_triton")
NOISE = 0.1
"""Centroids are sampled points plus this much normal noise."""

LONG = Pace(batch_ms=3.0, idle_s=0.1, warmup_ms=10.0)
SHORT = Pace(batch_ms=1.0)


class Session:
    """One process on one device. directory: what `prepare` made. quick: the smoke run's shapes."""

    def __init__(self, env: Env, directory: Path, quick: bool = False) -> None:
        self.env, self.torch, self.quick = env, env.torch, quick
        self.math = TorchMath(env.torch)
        self.product = ours.Product(directory)
        self.known = contracts()
        self.baselines = registry()
        self.unavailable: dict[str, str] = {}
        self.facts: dict[str, Any] = {}
        self.library = self._library(directory / "cute")
        self._yardstick: Contender | None = None
        self._cute_known: dict[str, cute.Best | None] = {}

    def _library(self, directory: Path) -> cute.Library | None:
        if not (directory / "cute.json").exists():
            self.unavailable[cute.NAME] = "not prepared: `prepare --cute PYTHON` compiles it"
            return None
        return cute.Library(directory)

    # ---- inputs ------------------------------------------------------------------------------------------------------

    def points(self, shape: Mapping[str, int]) -> dict[str, Any]:
        """x, c, c_sq and label of a k-means shape: normal points in bf16, centroids near points, exact norms."""
        torch, (b, n, c, d) = self.torch, (shape[k] for k in "BNCD")
        generator = torch.Generator(device="cuda").manual_seed(0)
        new: dict[str, Any] = {"device": "cuda", "generator": generator}
        x = torch.empty((b, n, d), dtype=torch.bfloat16, device="cuda")
        for i in range(b):
            x[i] = torch.randn((n, d), **new)
        picked = torch.randint(n, (b, c, 1), **new).expand(b, c, d)
        centroids = (x.gather(1, picked).float() + NOISE * torch.randn((b, c, d), **new)).bfloat16()
        sq = centroids.double().square().sum(-1).float()
        label = torch.empty((b, n), dtype=torch.int32, device="cuda")
        return {"x": x, "c": centroids, "c_sq": sq, "label": label}

    def operands(self, layout: str, shape: Mapping[str, int]) -> dict[str, Any]:
        """a, b, d of a product; b is (N, K), for NN a transposed view of a (K, N) tensor."""
        torch, (m, n, k) = self.torch, (shape[key] for key in "MNK")
        generator = torch.Generator(device="cuda").manual_seed(0)
        new: dict[str, Any] = {"device": "cuda", "generator": generator}
        a = torch.randn((m, k), **new).bfloat16()
        b = torch.randn((n, k) if layout == "TN" else (k, n), **new).bfloat16()
        d = torch.empty((m, n), dtype=torch.bfloat16, device="cuda")
        return {"a": a, "b": b if layout == "TN" else b.t(), "d": d}

    # ---- contenders --------------------------------------------------------------------------------------------------

    def baseline(
        self, name: str, views: Mapping[str, Any], output: str, check: Callable[[Any], dict[str, Any]] | None
    ) -> Contender | None:
        """A library call with an output of its own; None (and the reason under `unavailable`) where it does not run."""
        known: Baseline = self.baselines[name]
        why = known.unavailable()
        if why is None:
            own = {**views, output: self.torch.empty_like(views[output])}
            try:
                runner = known.make(own, {})
                runner.run()
                self.env.sync()
            except Exception as exc:  # a library may fail in any way; the others are still worth timing
                why = f"{type(exc).__name__}: {str(exc)[:200]}"
            else:
                run = runner.run
                return self.checked(
                    Contender(name, lambda _: run(), versions=known.versions(), keep=runner), own[output], check
                )
        self.unavailable[name] = why
        return None

    def checked(self, c: Contender, output: Any, check: Callable[[Any], dict[str, Any]] | None) -> Contender:
        """The contender with a check: poison, run once, judge."""
        if check is not None:

            def judged() -> dict[str, Any]:
                output.fill_(labels.POISON if output.dtype == self.torch.int32 else float("nan"))
                self.env.sync()
                c.run(self.env.stream)
                self.env.sync()
                return check(output)

            c.check = judged
        return c

    def own(self, made: Contender | str, output: Any, check: Callable[[Any], dict[str, Any]]) -> Contender | str:
        """Ours with its check, or why it does not serve the shape."""
        return made if isinstance(made, str) else self.checked(made, output, check)

    def yardstick(self) -> Contender | None:
        """cuBLAS on the yardstick product."""
        if self._yardstick is None:
            self._yardstick = self.baseline(CUBLAS, self.operands("TN", shapes.YARDSTICK), "d", None)
            if self._yardstick is not None:
                self._yardstick.computes, self._yardstick.detail = False, shape_text(shapes.YARDSTICK)
        return self._yardstick

    # ---- tables ------------------------------------------------------------------------------------------------------

    def gemm(self) -> Iterator[Row]:
        """Products: ours beside cuBLAS, every element of both against float64."""
        contract = self.known["gemm_bf16"]
        for number, (layout, shape) in enumerate(shapes.QUICK_GEMM if self.quick else shapes.GEMM):
            t = self.operands(layout, shape)
            judge = self._product_judge(contract, shape, t)
            peer = self.baseline(CUBLAS, t, "d", judge)
            mine = self.own(self.product.gemm(layout, shape, t), t["d"], judge)
            group = "" if self.quick or number < shapes.HEADLINE_GEMM else "extra"
            flops = contract.flops(shape)
            yield row(self.env, shape, mine, [peer] if peer else [], LONG, flops=flops, layout=layout, group=group)

    def _product_judge(self, contract: Contract, shape: Shape, t: Mapping[str, Any]) -> Callable[[Any], dict[str, Any]]:
        m = self.math
        inputs = {"a": t["a"], "b": t["b"]}
        expected: dict[str, Any] = {}

        def judge(d: Any) -> dict[str, Any]:
            if not expected:
                expected.update(compare.run_oracle(m, contract, inputs))
            v = compare.judge(m, contract, Case(shape, "normal"), inputs, {"d": d}, expected)
            return {
                "elements": v.total,
                "wrong": v.bad,
                "worst": round(v.worst.excess, 6) if v.worst else 0.0,
                "ok": v.ok,
            }

        return judge

    def large(self) -> Iterator[Row]:
        """Assignment of large shapes: both Triton kernels, the CuTe DSL kernels, and cuBLAS as the yardstick."""
        for shape in self.large_shapes():
            yield self._assign(shape, LONG, cute_too=True)

    def contract(self) -> Iterator[Row]:
        """Assignment of the contract's shapes, most of them small."""
        for shape in shapes.quick_contract() if self.quick else shapes.contract():
            yield self._assign(shape, SHORT, cute_too=False)

    def _assign(self, shape: Shape, pace: Pace, *, cute_too: bool) -> Row:
        t = self.points(shape)

        def judge(label: Any) -> dict[str, Any]:
            return labels.check(self.math, t["x"], t["c"], t["c_sq"], label)

        others = [c for name in TRITON if (c := self.baseline(name, t, "label", judge)) is not None]
        if cute_too:
            others += [c for c in (self._cute(shape, t, judge), self.yardstick()) if c is not None]
        mine = self.own(self.product.assign(shape, t), t["label"], judge)
        return row(self.env, shape, mine, others, pace, flops=self.known["kmeans_assign"].flops(shape))

    def _cute(self, shape: Shape, t: Mapping[str, Any], judge: Callable[[Any], dict[str, Any]]) -> Contender | None:
        found = self.cute_launch(shape, t)
        if found is None or self.library is None:
            return None
        own = {**t, "label": self.torch.empty_like(t["label"])}
        launch = found[0].bind(*(own[n].data_ptr() for n in ("x", "c", "c_sq", "label")))
        made = Contender(cute.NAME, launch, versions=self.library.versions, detail=found[1], keep=own)
        return self.checked(made, own["label"], judge)

    def cute_launch(self, shape: Shape, t: Mapping[str, Any]) -> tuple[cute.Kernel, str] | None:
        """The fastest CuTe DSL kernel of a shape and its configuration in words; None where there is none. Tried once a shape."""
        key = shape_text(shape)
        if self.library is not None and shape["B"] == 1 and key not in self._cute_known:
            self._cute_known[key] = cute.best(self.torch, self.library, shape, t)
        found = self._cute_known.get(key)
        if found is None:
            return None
        self.facts.setdefault("cute_tried_us", {})[key] = found.tried
        return found.kernel, found.kernel.config

    def large_shapes(self) -> tuple[Shape, ...]:
        """Of the tables of large shapes."""
        return shapes.QUICK_LARGE if self.quick else shapes.LARGE

    def small_shapes(self) -> tuple[Shape, ...]:
        """Of the table of calls."""
        return shapes.small()[:2] if self.quick else shapes.small()

    def run(self, name: str, until: float = math.inf) -> tuple[list[Row], dict[str, Any]]:
        """All rows of a table, told as they come, and its facts. Raises OverBudget when `until` (monotonic) passes: half a table is
        none."""
        self.facts, self.unavailable = {}, {k: v for k, v in self.unavailable.items() if k == cute.NAME}
        start, rows = time.monotonic(), []
        table = getattr(self, name)() if hasattr(self, name) else getattr(whole, name)(self)
        for found in table:
            rows.append(found)
            print(line(found), file=sys.stderr, flush=True)
            self.torch.cuda.empty_cache()
            if time.monotonic() > until:
                raise OverBudget(f"{name}: the budget was over after {len(rows)} rows")
        facts = {**self.facts, "seconds": round(time.monotonic() - start, 1)}
        return rows, facts | ({"unavailable": self.unavailable} if self.unavailable else {})


MEASURED = {"large": 40.0, "gemm": 28.0, "contract": 25.0, "calls": 30.0, "iteration": 35.0, "host": 20.0}
"""Every table, in the order in which they run (methods of `Session`, functions of `whole`), and the seconds that it takes on an
H200 with some reserve: a table that would not end within a run's budget is not begun."""


class OverBudget(Exception):
    """The run's time is over in the middle of a table."""


def line(r: Row) -> str:
    """One row for a person."""
    mine = f"{OURS} {r.ours.us:.2f}" if r.ours else f"({r.refused})"
    if r.ours and r.flops:
        mine += f" {r.flops / r.ours.us / 1e6:.0f}T"
    rest = ", ".join(f"{t.name} {t.us:.2f}" + (f" x{t.ratio:.3f}" if t.ratio else "") + _judged(t) for t in r.against)
    faults = f" FAULTS {r.faults}" if r.faults else ""
    notes = f" notes {[n[:90] for n in r.notes]}" if r.notes else ""
    mhz = f" {r.ours.sm_mhz:.0f} MHz" if r.ours and r.ours.sm_mhz else ""
    return f"{r.layout}{shape_text(r.shape)}: {mine}{_judged(r.ours)}{mhz} | {rest} {r.method}{faults}{notes}"


def _judged(t: Any) -> str:
    if t is None or not t.checked:
        return ""
    c = t.checked
    return f" [{'ok' if c['ok'] else 'WRONG'} w{c['wrong']} t{c.get('ties', '-')} {c['worst']:.3g}]"
