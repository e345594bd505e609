"""The value reading: runs a bound kernel on numpy arrays under the execution model.

Every CTA of the grid, every role instance and every asynchronous engine takes part; a missing wait, fence or release
shows as poison, a fault or a wrong number under some schedule.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from analyses.value.carried import MAX_ROUNDS
from analyses.value.compile import Compiler
from analyses.value.exprs import POISON, round_scalar, scalar
from analyses.value.facts import Skeleton, reader
from analyses.value.faults import ValueFault
from analyses.value.formats import np_dtype
from analyses.value.machine import Agent, Cta, FragState, Machine
from analyses.value.memory import GlobalTensor, MemoryMap
from cake_ir.bound import SX, BoundKernel, Op, SConst, SOp, SVar, Tensor, walk
from cake_ir.diagnostics import Span

MAX_CTAS = 65536


def interpret(
    bound: BoundKernel,
    tensors: Mapping[str, np.ndarray],
    scalars: Mapping[str, float | int] | None = None,
    *,
    schedule: str = "greedy",
    sms: int = 4,
    undefined: Collection[str] = (),
    rounds: int = MAX_ROUNDS,
    entered: set[Span] | None = None,
) -> dict[str, np.ndarray]:
    """Outputs (Out and InOut tensors) by name.

    tensors: In, Const and InOut arrays by name, in the tensors' dtypes (or same-width integers for fp8/bf16 bits);
    Out arrays give only their shape. scalars: kernel scalars, and dimension symbols that no array determines. sms:
    `device.sms`. undefined: InOut tensors (workspaces) whose contents are poison at the start. rounds: after which a `while`
    counts as stuck. entered: gets the spans of the whiles whose body ran. Raises ValueFault.
    """
    with np.errstate(all="ignore"):
        launch = _Launch(bound, dict(tensors), dict(scalars or {}), schedule, sms, frozenset(undefined))
        return launch.run(rounds, set() if entered is None else entered)


class _Launch:
    def __init__(
        self,
        bound: BoundKernel,
        arrays: dict[str, np.ndarray],
        scalars: dict[str, Any],
        schedule: str,
        sms: int,
        undefined: frozenset[str],
    ) -> None:
        self.bound, self.schedule, self.sms = bound, schedule, sms
        known = {t.name for t in bound.tensors}
        for name in (*arrays, *undefined):
            if name not in known:
                raise ValueFault(
                    "input", f"{bound.name} has no tensor {name}; it has {', '.join(sorted(known))}", bound.span
                )
        self.env: list[Any] = [POISON] * len(bound.scalars)
        self._arguments(scalars)
        self._dims(arrays, scalars)
        self.tensors = {t.name: self._tensor(t, arrays.get(t.name), t.name in undefined) for t in bound.tensors}
        for w in bound.where:
            if not scalar(w.cond)(self.env):
                raise ValueFault(
                    "where", f"{bound.name} is not made for these shapes: a `where` fact does not hold", w.span
                )

    def _arguments(self, scalars: dict[str, Any]) -> None:
        names = {a.name for a in self.bound.args} | set(self.bound.dims)
        for name in scalars:
            if name not in names:
                raise ValueFault(
                    "input",
                    f"{self.bound.name} has no scalar {name}; it has {', '.join(sorted(names)) or 'none'}",
                    self.bound.span,
                )
        for a in self.bound.args:
            if a.name not in scalars:
                raise ValueFault("input", f"scalar {a.name} is missing", a.span)
            self.env[a.slot] = round_scalar(scalars[a.name], a.dtype)
        if "sms" in self.bound.builtins:
            self.env[self.bound.builtins["sms"].slot] = self.sms

    def _dims(self, arrays: dict[str, np.ndarray], scalars: dict[str, Any]) -> None:
        dims = {v.slot: name for name, v in self.bound.dims.items()}
        for name, v in self.bound.dims.items():
            if name in scalars:
                self.env[v.slot] = int(scalars[name])
        for t in self.bound.tensors:
            a = arrays.get(t.name)
            if a is None:
                continue
            if a.ndim != len(t.extents):
                raise ValueFault("input", f"{t.name} has {len(t.extents)} dimensions, the array has {a.ndim}", t.span)
            for x, n in zip(t.extents, a.shape, strict=True):
                self._solve(x, n, dims, t)
        left = [name for slot, name in dims.items() if self.env[slot] is POISON]
        if left:
            raise ValueFault(
                "input", f"extents {', '.join(left)} are not determined by any array or scalar", self.bound.span
            )

    def _solve(self, x: SX, n: int, dims: dict[int, str], t: Tensor) -> None:
        """Gives the dimension symbol of an extent its value, where the extent is the symbol or a linear form of it."""
        if isinstance(x, SVar) and x.var.slot in dims:
            have = self.env[x.var.slot]
            if have is not POISON and have != n:
                raise ValueFault("input", f"{t.name}: {dims[x.var.slot]} is {n} here and {have} elsewhere", t.span)
            self.env[x.var.slot] = n
        elif isinstance(x, SOp) and x.op in ("*", "+", "-") and any(isinstance(a, SConst) for a in x.args):
            k = next(int(a.value) for a in x.args if isinstance(a, SConst))
            inner = next((a for a in x.args if not isinstance(a, SConst)), None)
            if inner is None or (x.op == "-" and isinstance(x.args[0], SConst)) or (x.op == "*" and (not k or n % k)):
                return
            self._solve(inner, n // k if x.op == "*" else n - k if x.op == "+" else n + k, dims, t)

    def _tensor(self, t: Tensor, a: np.ndarray | None, undefined: bool) -> GlobalTensor:
        shape = tuple(int(scalar(x)(self.env)) for x in t.extents)
        if a is None and t.direction != "Out" and not undefined:
            raise ValueFault("input", f"tensor {t.name} ({t.direction}) is missing", t.span)
        if a is not None:
            if a.shape != shape:
                raise ValueFault("input", f"{t.name} must have shape {shape}, the array has {a.shape}", t.span)
            nd = np_dtype(t.dtype)
            if a.dtype != nd and t.direction != "Out":
                if a.dtype.itemsize != nd.itemsize or a.dtype.kind not in "iu":
                    raise ValueFault("input", f"{t.name} must have dtype {t.dtype}, the array has {a.dtype}", t.span)
                a = np.ascontiguousarray(a).view(nd)
        return GlobalTensor(t, shape, a, undefined)

    def run(self, rounds: int, entered: set[Span]) -> dict[str, np.ndarray]:
        bound = self.bound
        grid, cluster = int(scalar(bound.launch.ctas)(self.env)), bound.launch.cluster
        if grid < 0 or grid % cluster or grid > MAX_CTAS:
            raise ValueFault(
                "input",
                f"the launch of {grid} CTAs in clusters of {cluster} is impossible (or above {MAX_CTAS})",
                bound.launch.span,
            )
        machine = Machine(bound, self.tensors, MemoryMap(bound), self.schedule)
        machine.grid, machine.rounds, machine.entered = grid, rounds, entered
        compiler = Compiler(machine)
        skeleton = Skeleton(
            bound, reader({n: t.data for n, t in self.tensors.items() if t.tensor.direction in ("In", "Const")})
        )
        clusters = grid // cluster
        whole = any(isinstance(s, Op) and s.name == "sync" and s.attrs.get("scope") == "grid" for s in walk(bound.body))
        wave = clusters if whole else max(1, self.sms * bound.launch.ctas_per_sm // cluster)
        for first in range(0, clusters, max(1, wave)):
            for i in range(first, min(clusters, first + wave)):
                self._start(machine, compiler, skeleton, i, grid)
            machine.run()
        for t in self.tensors.values():
            left = t.unwritten()
            if left is not None:
                raise ValueFault(
                    "out-unwritten",
                    f"{left[0]} elements of Out tensor {t.tensor.name} {list(t.shape)} are never written,"
                    f" the first at {left[1]}",
                    t.tensor.span,
                )
        return {n: t.data for n, t in self.tensors.items() if t.tensor.direction in ("Out", "InOut")}

    def _start(self, machine: Machine, compiler: Compiler, skeleton: Skeleton, number: int, grid: int) -> None:
        bound, cluster = self.bound, self.bound.launch.cluster
        envs = []
        for rank in range(cluster):
            env = list(self.env)
            values = {
                "cta": number * cluster + rank,
                "cta_count": grid,
                "cluster_rank": rank,
                "cluster_id": number,
                "cluster_count": grid // cluster,
                "sms": self.sms,
            }
            for name, var in bound.builtins.items():
                env[var.slot] = values[name.split(".")[-1]]
            envs.append(env)
        counts = skeleton.count(envs)
        machine.check_derived(counts)
        peers = [Cta(machine, number * cluster + rank, rank, counts) for rank in range(cluster)]
        for cta, env in zip(peers, envs, strict=True):
            cta.peers = peers
            for role in bound.roles:
                for i in range(1 if role.unit == "thread" else role.count):
                    agent = Agent(machine, cta, role, i, list(env), [FragState(f) for f in compiler.fragments])
                    machine.spawn(agent, compiler.agent_gen(role, agent))  # type: ignore[arg-type]
