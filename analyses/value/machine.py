"""The machine of the value reading: CTAs, agents, asynchronous engines, and the scheduler.

An agent is one role instance (or one warp inside `warps()`), a Python generator that yields blockers. Asynchronous
ops are engine ops with one or two delayed steps; they run when the schedule lets them, not when they are issued.
Schedules (deterministic): greedy (agents run until they block; engines move, oldest first, only when all agents are
blocked) | eager (engines move before any agent) | random:SEED | starve:ROLE[.INSTANCE] | late:ENGINE (tma store
cp_async wgmma tcgen05). Tensor memory is accessed by the wait of its load or store, under eager when that is issued,
under random at either.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

import numpy as np

from analyses.value.barriers import Meeting, Ring
from analyses.value.carried import MAX_ROUNDS
from analyses.value.facts import Counts
from analyses.value.faults import PoisonUse, ValueFault
from analyses.value.formats import Mask, poison
from analyses.value.memory import TMEM_ROW, Bytes, GlobalTensor, MemoryMap
from cake_ir.bound import BoundKernel, Buffer, Fragment, Op, Role, View, walk
from cake_ir.derive import derive
from cake_ir.diagnostics import NOWHERE, Span

ENGINES = ("tma", "store", "cp_async", "wgmma", "tcgen05")


class FragState:
    """Registers of one fragment. pending: unretired asynchronous writers; reading: unretired asynchronous readers."""

    __slots__ = ("data", "pending", "reading", "undef")

    def __init__(self, frag: Fragment) -> None:
        shape = (frag.type.rows, frag.type.cols)
        self.data: np.ndarray = poison(frag.type.dtype, shape)
        self.undef: Mask = np.ones(shape, bool)
        self.pending = self.reading = 0


class AsyncOp:
    """One asynchronous op: `steps` run in order, each at a time the schedule picks."""

    __slots__ = ("agent", "done", "engine", "retire", "seq", "source", "span", "steps", "text")

    def __init__(
        self, engine: str, steps: tuple[Callable[[], None], ...], agent: "Agent", span: Span, text: str
    ) -> None:
        self.engine, self.steps, self.agent, self.span, self.text = engine, steps, agent, span, text
        self.done, self.seq = 0, 0
        self.retire: Callable[[], None] | None = None
        self.source: tuple[Bytes, Any, np.ndarray] | None = None  # what a bulk copy reads: memory, dtype, elements

    @property
    def finished(self) -> bool:
        return self.done == len(self.steps)


class Cta:
    """One CTA: memories, barriers, meetings."""

    def __init__(self, machine: "Machine", number: int, rank: int, counts: Counts) -> None:
        self.machine, self.number, self.rank = machine, number, rank
        self.smem = Bytes(machine.map.smem_bytes)
        self.tmem = Bytes(128 * TMEM_ROW) if machine.map.has_tmem else None
        self.rings = {
            b: Ring(b, machine.count(b, counts), number) for b in machine.bound.barriers if b.kind == "mbarrier"
        }
        self.counts = counts
        self.peers: list[Cta] = [self]
        self.meetings: dict[Any, Meeting] = {}
        self.live = 0

    def must_live(self, what: str, span: Span, agent: str) -> None:
        """Shared memory and barriers end with their CTA: an access after that is a fault."""
        if not self.live:
            raise ValueFault("exit", f"CTA {self.number} has ended when {what}", span, agent)

    def memory(self, buffer: Buffer) -> Bytes:
        """The memory that holds a buffer."""
        if buffer.space == "tmem":
            assert self.tmem is not None
            return self.tmem
        return self.smem

    def meeting(self, key: Any, name: str, total: int) -> Meeting:
        """A rendezvous by key, made on first use."""
        if key not in self.meetings:
            self.meetings[key] = Meeting(name, total)
        return self.meetings[key]


class Touched(NamedTuple):
    """Elements of shared memory that a unit wrote or read through the generic proxy and has not fenced."""

    memory: Bytes
    dtype: Any
    idx: np.ndarray
    unit: str
    read: bool

    def clear(self) -> None:
        """A fence covers it."""
        if self.read:
            self.memory.clear_read(self.dtype, self.idx)
        else:
            self.memory.clear_unfenced(self.dtype, self.idx)


class Agent:
    """One role instance, or one of its warps (parent set)."""

    def __init__(
        self,
        machine: "Machine",
        cta: Cta,
        role: Role,
        index: int,
        env: list[Any],
        frags: list[FragState],
        parent: "Agent | None" = None,
        warp: int | None = None,
    ) -> None:
        self.machine, self.cta, self.role, self.index = machine, cta, role, index
        self.env, self.frags, self.parent, self.warp = env, frags, parent, warp
        self.weight = 1 if warp is not None else role.warps_per_instance
        self.gen: Generator[Any, None, None] | None = None
        self.blocked: Any = None
        self.done = False
        self.at: Any = None  # the statement being executed
        self.unfenced: list[Touched] = []
        self.fenced: list[Touched] = []  # each thread has fenced its part, but the unit has not met since
        self.epoch, self.warp_epoch, self.warp_epochs = machine.new_epoch(), 0, [1, 1, 1, 1]
        self.dirty = self.wrote = False  # shared memory was written: in this epoch, ever
        self.open_bulk: dict[str, list[AsyncOp]] = {"T": [], "G": []}
        self.bulk: dict[str, list[list[AsyncOp]]] = {"T": [], "G": []}
        # the bulk groups of its warps outlast the block; the first thread of the unit is that of its first warp
        self.warp_bulk: list[tuple[dict[str, list[AsyncOp]], dict[str, list[list[AsyncOp]]]]] = [
            (self.open_bulk, self.bulk),
            *(({"T": [], "G": []}, {"T": [], "G": []}) for _ in range(3)),
        ]
        # sources of bulk copies that the first thread alone has waited for, until the unit's next sync
        self.waited_alone: list[tuple[Bytes, Any, np.ndarray]] = []
        self.open_cp: list[AsyncOp] = []
        self.cp: list[list[AsyncOp]] = []
        self.open_wgmma: list[AsyncOp] = []
        self.wgmma: list[list[AsyncOp]] = []
        self.tmem_loads: list[Callable[[], None]] = []
        self.tmem_stores: list[Callable[[], None]] = []

    @property
    def name(self) -> str:
        inst = f"[{self.index}]" if self.role.count > 1 else ""
        warp = f" warp {self.warp}" if self.warp is not None else ""
        return f"{self.role.name}{inst}{warp} of CTA {self.cta.number}"

    @property
    def span(self) -> Span:
        return getattr(self.at, "span", NOWHERE)

    def fault(self, kind: str, message: str, notes: tuple[tuple[str, Span], ...] = ()) -> ValueFault:
        """A fault at the current statement."""
        op = getattr(self.at, "name", "") if hasattr(self.at, "decl") else ""
        return ValueFault(kind, message, self.span, self.name, notes, op)

    def fault_poison(self, message: str) -> ValueFault:
        """A poison fault with the reads that first saw undefined bytes (in this CTA, the first four)."""
        return self.fault("poison", message, tuple(self.machine.hints.get(self.cta.number, {}).keys())[:4])

    def fault_pending(self, frag: Fragment, st: FragState) -> None:
        """Raises: a fragment is touched while an asynchronous op owns it."""
        raise self.fault(
            "pending-register", f"{frag.name} is used while an asynchronous op still writes it: no wait has retired it"
        )

    def synced(self) -> None:
        """The threads of the unit have met: what they wrote before is visible to all of them."""
        self.epoch, self.dirty = self.machine.new_epoch(), False
        self._settle()

    def warp_synced(self) -> None:
        """The lanes of a warp inside `warps()` have met; the other warps have not."""
        self.warp_epoch += 1
        self._settle()

    def _settle(self) -> None:
        """Fences of all threads are known to all of them."""
        for t in self.fenced:
            t.clear()
        self.fenced.clear()

    def first_thread(self) -> int:
        """The unit's first thread, counted inside the role instance."""
        return 32 * self.warp if self.warp is not None else 0

    def unsynced(self, memory: Bytes, dtype: Any, idx: np.ndarray, threads: np.ndarray | int, what: str) -> Mask:
        """Elements that other threads of this unit wrote since its last sync: reading them is a race."""
        if not self.dirty:
            return None
        mask = memory.by_others(dtype, idx, (self.epoch, self.warp_epoch), threads, self.warp)
        if mask is not None:
            self.hint(f"{what} reads what other threads of its unit wrote since their last sync")
        return mask

    def hint(self, text: str) -> None:
        """Remembers (once per statement) why poison arose."""
        self.machine.hints.setdefault(self.cta.number, {})[text, self.span] = None

    def write_frag(self, slot: int, frag: Fragment, data: np.ndarray, undef: Mask) -> None:
        """Assigns a fragment in registers."""
        st = self.frags[slot]
        if st.pending or st.reading:
            what = "writes" if st.pending else "reads"
            raise self.fault(
                "pending-register",
                f"{frag.name} is assigned while an asynchronous op still {what} it: no wait has retired it",
            )
        st.data, st.undef = data, undef


def _async_written(bound: BoundKernel) -> set[Buffer]:
    """Buffers that copies fill through the async proxy."""
    found: set[Buffer] = set()
    for s in walk(bound.body):
        for a in s.decl.accesses if isinstance(s, Op) else ():
            if a.proxy == "async" and a.mode != "read" and isinstance(view := s.operands.get(a.operand), View):
                found.add(view.buffer)
    return found


class Machine:
    """Runs the agents of resident clusters to completion."""

    def __init__(self, bound: BoundKernel, tensors: dict[str, GlobalTensor], memory: MemoryMap, schedule: str) -> None:
        self.bound, self.tensors, self.map = bound, tensors, memory
        self.derived = derive(bound)
        self.epochs = 0
        self.hints: dict[int, dict[tuple[str, Span], None]] = {}
        self.agents: list[Agent] = []
        self.chains: dict[Any, deque[AsyncOp]] = {}
        self.seq = 0
        self.counted: dict[Any, int] = {}
        self.grid = 0
        self.rounds = MAX_ROUNDS
        self.entered: set[Span] = set()  # whiles whose body has run
        self.proxied = any(a.proxy == "async" for s in walk(bound.body) if isinstance(s, Op) for a in s.decl.accesses)
        self.refilled = memory.overlapping(_async_written(bound))
        self.grid_meetings: dict[Any, Meeting] = {}
        self.mode, _, arg = schedule.partition(":")
        if self.mode not in ("greedy", "eager", "newest", "random", "starve", "late") or (
            self.mode in ("starve", "late", "random") and not arg
        ):
            raise ValueFault(
                "input",
                f"unknown schedule {schedule!r}; known: greedy, eager, newest, random:SEED,"
                " starve:ROLE[.INSTANCE], late:ENGINE",
            )
        self.fine = self.mode in ("random", "starve")
        if self.mode == "random":
            try:
                self.random = random.Random(int(arg))
            except ValueError:
                raise ValueFault("input", f"random:SEED needs an integer, got {arg!r}") from None
        if self.mode == "late" and arg not in ENGINES:
            raise ValueFault("input", f"unknown engine {arg!r}; known: {', '.join(ENGINES)}")
        role, _, inst = arg.partition(".")
        if self.mode == "starve" and role not in {r.name for r in bound.roles}:
            raise ValueFault("input", f"unknown role {role!r}; known: {', '.join(r.name for r in bound.roles)}")
        self.late = arg
        self.starved = (role, int(inst) if inst.isdigit() else None)

    def count(self, barrier: Any, counts: Counts) -> int:
        """Arrival count of a barrier; all clusters must agree."""
        n = counts.arrival_count(barrier)
        if not any(b is barrier for _, b, _ in counts.arrivals):
            return n  # a cluster without work: nothing arrives and nothing waits
        known = self.counted.setdefault(barrier, n)
        if known != n:
            raise ValueFault("arrivals", f"{barrier.name}: unequal arrivals per use ({known} and {n})", barrier.span)
        if barrier.arrivals is not None and barrier.arrivals != n:
            raise ValueFault(
                "arrivals", f"{barrier.name} asserts {barrier.arrivals} arrivals, but every use gets {n}", barrier.span
            )
        return n

    def check_derived(self, counts: Counts) -> None:
        """What `derive` says and lowering emits must be what this launch gets; otherwise the emitted kernel hangs or
        races."""
        if not self.derived.ok:
            return  # the derivation reports its own findings; the reading goes on with exact counts
        for (_, barrier, use), n in counts.arrivals.items():
            derived = self.derived.arrivals.get(barrier)
            if derived != n:
                text = f"{barrier.name}: the derived arrival count is {derived}, but use {use} of this launch gets {n}"
                raise ValueFault("derived", text, barrier.span)
        for (_, barrier, number), members in counts.named.items():
            _, threads = self.derived.named.get(("named", barrier, number), (0, None))
            if threads != 32 * sum(members.values()):
                text = f"{barrier.name}[{number}]: derived for {threads} threads, {32 * sum(members.values())} enter"
                raise ValueFault("derived", text, barrier.span)

    def issue(self, op: AsyncOp, chain: Any = None) -> AsyncOp:
        """Queues an engine op; ops of one chain run in order."""
        self.seq += 1
        op.seq = self.seq
        self.chains.setdefault(chain if chain is not None else self.seq, deque()).append(op)
        return op

    def new_epoch(self) -> int:
        """A number for the time between two syncs of one unit."""
        self.epochs += 1
        return self.epochs

    def spawn(self, agent: Agent, gen: Generator[Any, None, None]) -> None:
        """Adds an agent."""
        agent.gen = gen
        agent.cta.live += 1
        self.agents.append(agent)

    # ---- scheduling --------------------------------------------------------------------------------------------------

    def at_once(self) -> bool:
        """Whether a load or store of tensor memory is done when it is issued; otherwise its wait does it."""
        return self.mode == "eager" or (self.mode == "random" and self.random.random() < 0.5)

    def run(self) -> None:
        """Until every agent has ended and every engine is idle; raises ValueFault."""
        if self.mode == "random":
            self._run_random()
        else:
            self._run_rounds()

    def _run_rounds(self) -> None:
        while True:
            if self.mode == "eager":
                while self._engine():
                    pass
            live = self.agents = [a for a in self.agents if not a.done]
            if not live:
                while self._engine():
                    pass
                self.agents.clear()
                return
            favoured = [a for a in live if not self._is_starved(a)]
            moved = False
            for a in favoured:  # a snapshot: warps spawned now start in the next round
                moved |= self._advance(a, until_blocked=True)
            if moved or self._engine(skip=self.late if self.mode == "late" else None):
                continue
            if any(self._advance(a, until_blocked=False) for a in live if self._is_starved(a)):
                continue
            if self.mode == "late" and self._engine():
                continue
            self._deadlock(live)

    def _run_random(self) -> None:
        pick = self.random
        while True:
            live = self.agents = [a for a in self.agents if not a.done]
            runnable = [a for a in live if a.blocked is None or self._ready(a)]
            heads = list(self.chains)
            if not live and not heads:
                self.agents.clear()
                return
            total = len(runnable) + len(heads)
            if not total:
                self._deadlock(live)
            k = pick.randrange(total)
            if k < len(runnable):
                # long stretches of one agent find more than uniform interleaving
                for _ in range(pick.choice((1, 3, 12, 60))):
                    if not self._advance(runnable[k], until_blocked=False):
                        break
            else:
                self._step(heads[k - len(runnable)])

    def _is_starved(self, a: Agent) -> bool:
        return self.mode == "starve" and a.role.name == self.starved[0] and self.starved[1] in (None, a.index)

    def _ready(self, a: Agent) -> bool:
        try:
            return a.blocked.ready()
        except PoisonUse:
            raise a.fault_poison("a decision depends on an undefined value") from None

    def _advance(self, a: Agent, until_blocked: bool) -> bool:
        """Runs an agent; False if it could not move."""
        if a.done or (a.blocked is not None and not self._ready(a)):
            return False
        assert a.gen is not None
        a.blocked = None
        try:
            while True:
                blocker = next(a.gen)
                if blocker is not None and not blocker.ready():
                    a.blocked = blocker
                    return True
                if not until_blocked:
                    return True
        except StopIteration:
            a.done = True
            a.cta.live -= 1
            self._ended(a)
            return True
        except PoisonUse:
            raise a.fault_poison("a decision, an address or a scalar operand is undefined") from None
        except OverflowError as e:
            raise a.fault("range32", f"an index value does not fit its 32-bit type ({e})") from None

    def _ended(self, a: Agent) -> None:
        if a.cta.live:
            return
        for chain in self.chains.values():
            for op in chain:
                if op.agent.cta is a.cta and op.engine == "store" and op.done == 0:
                    raise ValueFault(
                        "exit",
                        f"CTA {a.cta.number} ends while a {op.text} still reads its shared memory",
                        op.span,
                        op.agent.name,
                    )

    def _engine(self, skip: str | None = None) -> bool:
        """Moves the oldest (or newest) engine op; False if there is none."""
        best, newest = None, self.mode == "newest"
        for key, chain in self.chains.items():
            if chain[0].engine == skip:
                continue
            if best is None or (chain[0].seq < self.chains[best][0].seq) != newest:
                best = key
        if best is None:
            return False
        self._step(best)
        return True

    def _step(self, key: Any) -> None:
        chain = self.chains[key]
        op = chain[0]
        op.steps[op.done]()
        op.done += 1
        if op.finished:
            chain.popleft()
            if not chain:
                del self.chains[key]

    def _deadlock(self, live: list[Agent]) -> None:
        lines = [f"{a.name} at {a.span} {a.blocked.describe()}" for a in live if a.blocked is not None]
        first = next(a for a in live if a.blocked is not None)
        raise ValueFault("deadlock", "no agent can move: " + "; ".join(lines[:12]), first.span, first.name)
