"""Where our contenders come from: launch plans prepared elsewhere, keyed by what they compute.

A plan names the corpus kernel and bindings for every shape of every table. `choose` is the rule by which they are picked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cake_ir.diagnostics import CakeError, error
from corpus import jobs
from corpus.contract import Shape
from corpus.gpu_buffers import Env
from corpus.gpu_check import launcher
from corpus.speed import shapes
from corpus.speed.model import Program
from corpus.speed.timing import OURS, Contender

PLAN = "plan.json"


@dataclass(frozen=True)
class Wanted:
    """One thing to compute: a contract, an operand layout, a shape."""

    contract: str
    layout: str
    shape: Mapping[str, int]

    @property
    def key(self) -> str:
        """A plain text key."""
        return f"{self.contract} {self.layout} " + " ".join(f"{k}{v}" for k, v in sorted(self.shape.items()))


def everything(quick: bool = False) -> list[Wanted]:
    """All that the tables compute; quick: what the smoke run does."""
    gemm = [Wanted("gemm_bf16", layout, s) for layout, s in (QUICK_GEMM if quick else shapes.GEMM)]
    kmeans = [*(QUICK_LARGE if quick else shapes.LARGE), *(quick_contract() if quick else shapes.contract())]
    return [*gemm, *(Wanted("kmeans_assign", "", s) for s in kmeans)]


QUICK_GEMM = (shapes.GEMM[1], shapes.GEMM[7])
QUICK_LARGE = (shapes.LARGE[0], shapes.LARGE[2])


def quick_contract() -> tuple[Shape, ...]:
    """Six contract shapes across the list."""
    found = shapes.contract()
    return found[:: len(found) // 6][:6]


# ---- launch plans of explicit variants -----------------------------------------------------------------------------


def choose(wanted: Wanted) -> tuple[str, dict[str, Any]] | str:
    """(corpus kernel, bindings) for a shape, or why there is none."""
    if wanted.contract == "gemm_bf16":
        if wanted.layout != "TN":
            return "no kernel of the corpus takes this layout"
        return "gemm_sm90", {}
    width = wanted.shape["D"]
    fitting = [p for p in (64, 128, 192, 256) if p >= width]
    if not fitting:
        return "no kernel of the corpus takes D above 256"
    # three warpgroups leave 160 registers each: too few for fragments of wide points
    return "kmeans_packed", {"DP": fitting[0], "WG": 3 if fitting[0] <= 128 else 2}


def prepare(directory: Path, quick: bool = False, target: str = "sm_90a") -> list[str]:
    """Compile every variant that the tables need into `directory`; returns one line per variant or refusal."""
    from corpus.kernels import kernel
    from corpus.prepare import prepare as make_job

    (directory / "jobs").mkdir(parents=True, exist_ok=True)
    groups: dict[str, list[Wanted]] = {}
    plan: dict[str, Any] = {"ours": {}, "refused": {}}
    for w in everything(quick):
        chosen = choose(w)
        if isinstance(chosen, str):
            plan["refused"][w.key] = chosen
        else:
            groups.setdefault(json.dumps(chosen, sort_keys=True), []).append(w)
    said = []
    for number, (text, members) in enumerate(sorted(groups.items())):
        name, bindings = json.loads(text)
        entry = kernel(name)
        job, skipped = make_job(
            entry.text(), members[0].contract, "launch", [dict(w.shape) for w in members], target=target,
            bindings={**entry.bindings, **bindings}, kernel=entry.kernel, name=entry.name,
        )  # fmt: skip
        file = f"jobs/{number}.json"
        (directory / file).write_text(job.model_dump_json() + "\n", encoding="utf-8")
        said.append(f"{name} {bindings}: {len(job.launches)} shapes, {len(skipped)} not admitted")
        why = {Wanted(members[0].contract, members[0].layout, s).key: reason for s, reason in skipped}
        for w in members:
            if w.key in why:
                plan["refused"][w.key] = why[w.key]
                continue
            at = next(i for i, launch in enumerate(job.launches) if launch.shape == dict(w.shape))
            plan["ours"][w.key] = {"job": file, "launch": at}
    (directory / PLAN).write_text(json.dumps(plan, indent=1) + "\n", encoding="utf-8")
    return said


class Prepared:
    """Contenders of ours from a prepared directory. Raises CakeError `speed/not-prepared` when it holds no plan."""

    def __init__(self, env: Env, directory: Path) -> None:
        self._env, self._directory = env, directory
        file = directory / PLAN
        if not file.exists():
            law = "The tables are compiled before they are measured."
            text = f"{file} does not exist: run `python -m corpus.speed prepare {directory}` first"
            raise CakeError(error("speed/not-prepared", "data", text, contract=law))
        self._plan: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        self._jobs: dict[str, jobs.Job] = {}

    def programs(self, wanted: Wanted) -> tuple[Program, ...]:
        """What the dispatcher launches for this, by the plan."""
        return tuple(Program.model_validate(p) for p in self._plan.get("dispatched", {}).get(wanted.key, ()))

    def make(self, wanted: Wanted, tensors: Mapping[str, Any]) -> Contender | str:
        """A contender over torch tensors by contract name, or why this shape is not served."""
        found = self._plan["ours"].get(wanted.key)
        if found is None:
            return str(self._plan["refused"].get(wanted.key, "not prepared"))
        job = self._job(found["job"])
        launch = job.launches[found["launch"]]
        owned = {n: self._env.device.alloc(_bytes(w), guard=0) for n, w in launch.workspaces.items()}
        pointers = {n: t.data_ptr() for n, t in tensors.items()} | {n: b.pointer for n, b in owned.items()}
        run = launcher(self._env, job, launch, pointers)
        program = Program(
            kernel=job.kernel, content_id=job.content_id, variant_id=job.variant_id, contract=job.contract,
            contract_digest=job.contract_digest, target=job.target, bindings=job.bindings, compiler=job.compiler,
            cubin_sha256=",".join(sorted({str(p["cubin_sha256"]) for p in launch.plans})),
        )  # fmt: skip
        return Contender(OURS, run, programs=(program,), kernels=len(launch.plans), keep=owned)

    def _job(self, file: str) -> jobs.Job:
        if file not in self._jobs:
            self._jobs[file] = jobs.parse(json.loads((self._directory / file).read_text(encoding="utf-8")))
        return self._jobs[file]


def _bytes(w: jobs.Workspace) -> int:
    from math import prod

    from corpus.arrays import element

    return prod(w.extents) * element(w.dtype).bytes
