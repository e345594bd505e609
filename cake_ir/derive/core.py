"""`derive`: every fact that follows from the program, computed once per bound object."""

from __future__ import annotations

from cake_ir.bound import BoundKernel, Op, Role, walk
from cake_ir.derive import arrivals as arr
from cake_ir.derive.findings import contract
from cake_ir.derive.maps import guards, tensor_maps
from cake_ir.derive.memory import memory_map, uses_op
from cake_ir.derive.model import Derived, LaunchFacts, NamedKey, RegisterChange
from cake_ir.diagnostics import Diagnostic, Related, Span, Subject, error
from cake_ir.memo import memo
from cake_ir.skeleton import SkeletonLimit
from cake_ir.witness import Witness, WitnessSet, witnesses

REGISTER_FILE = 65_536
MAX_REGISTERS = 255
NAMED_BARRIERS = 15


def derive(bound: BoundKernel) -> Derived:
    """The derived facts of a kernel (cached by identity). Never raises for a faulty program: findings are in
    `diagnostics`, and a fact that could not be derived has a harmless default."""
    return memo(bound, "derived", lambda: _derive(bound))


def _derive(bound: BoundKernel) -> Derived:
    memory = memory_map(bound)
    diagnostics: list[Diagnostic] = list(memory.diagnostics)
    try:
        chosen = witnesses(bound)
        tally = arr.count(bound, chosen.witnesses)
    except SkeletonLimit:
        chosen, tally = WitnessSet((), (), ("the control skeleton is longer than the limit",)), arr.Tally()
    if chosen.endless is not None:
        diagnostics.append(_endless(bound, *chosen.endless))
    if not chosen.witnesses:
        if chosen.endless is None:
            diagnostics.append(_no_witness(bound, chosen))
        counts, sizes = {b: 1 for b in bound.barriers if b.kind == "mbarrier"}, {}
    else:
        counts, sizes, found = arr.settle(bound, tally)
        diagnostics += found
    named, more = named_ids(bound, tally)
    diagnostics += more
    maps, op_maps, copies = tensor_maps(bound)
    return Derived(
        smem=memory.smem,
        stage_stride=memory.stage_stride,
        barrier_offset=memory.barrier_offset,
        tmem_slot=memory.tmem_slot,
        smem_used=memory.used,
        smem_bytes=memory.total,
        align=memory.align,
        tmem=memory.tmem,
        tmem_columns=memory.tmem_columns,
        tmem_owner=memory.tmem_owner,
        arrivals=counts,
        expect_bytes=sizes,
        named=named,
        tensor_maps=maps,
        op_maps=op_maps,
        copies=copies,
        launch=launch_facts(bound),
        guards=guards(bound),
        diagnostics=tuple(diagnostics),
        witnesses=chosen.witnesses,
        unmet_goals=chosen.unmet,
    )


def _no_witness(bound: BoundKernel, chosen: WitnessSet) -> Diagnostic:
    """Nothing could be run: an error, but only a warning where the runs are merely too long and no count is needed."""
    long = [text for text in chosen.unmet if "longer than" in text]
    why = (
        f"every shape is {long[0].split(': ', 1)[1]}"
        if long
        else "no shape within the limits satisfies `where` and gives a launch"
    )
    found = error(
        "derive/no-witness",
        "derive",
        f"{why}; nothing can be counted, so progress and the order of accesses stay undecided",
        bound.span,
        contract=contract("derive/no-witness"),
        subject=Subject(kernel=bound.name),
        related=() if chosen.too_long is None else (Related(span=chosen.too_long, message="this loop runs too long"),),
    )
    return found if bound.barriers or not long else found.model_copy(update={"severity": "warning"})


def _endless(bound: BoundKernel, at: Span, why: str, shape: Witness) -> Diagnostic:
    """A loop that does not end on some shape."""
    return error(
        "sync/endless-loop",
        "safety",
        f"this loop never ends: {why} [{shape.describe()}]",
        at,
        contract=contract("sync/endless-loop"),
        subject=Subject(kernel=bound.name),
    )


def launch_facts(bound: BoundKernel) -> LaunchFacts:
    """Threads, registers at launch and the setmaxnreg of every role."""
    threads = bound.threads
    r0 = min(MAX_REGISTERS, REGISTER_FILE // max(1, threads * bound.launch.ctas_per_sm) // 8 * 8)
    changes: dict[str, RegisterChange] = {}
    if bound.target.has("setmaxnreg"):
        for role in bound.roles:
            if role.registers is not None and role.registers != r0:
                changes[role.name] = RegisterChange("dec" if role.registers < r0 else "inc", role.registers)
    grid_sync = any(isinstance(s, Op) and s.name == "sync" and s.attrs.get("scope") == "grid" for s in walk(bound.body))
    return LaunchFacts(
        threads, bound.launch.cluster, bound.launch.ctas_per_sm, r0, changes, uses_op(bound, "griddep_wait"), grid_sync
    )


def named_ids(bound: BoundKernel, tally: arr.Tally) -> tuple[dict[NamedKey, tuple[int, int]], list[Diagnostic]]:
    """Ids in order of first use from 1; a single-instance role and its warpgroup share one."""
    roles: dict[str, Role] = {r.name: r for r in bound.roles}
    named: dict[NamedKey, tuple[int, int]] = {}
    diagnostics: list[Diagnostic] = []
    next_id = 1

    def take(key: NamedKey, threads: int, op: Op) -> None:
        nonlocal next_id
        if key in named:
            return
        named[key] = (next_id, threads)
        if next_id == NAMED_BARRIERS + 1:
            diagnostics.append(
                error(
                    "derive/named-ids",
                    "derive",
                    f"this needs hardware barrier {next_id}; a CTA has {NAMED_BARRIERS} besides its own",
                    op.span,
                    contract=contract("derive/named-ids"),
                    subject=Subject(kernel=bound.name, role=op.role, op=op.name),
                )
            )
        next_id += 1

    for s in walk(bound.body):
        if not isinstance(s, Op) or s.name not in ("sync", "named_arrive"):
            continue
        scope = s.attrs.get("scope")
        if s.name == "named_arrive" or scope == "named":
            bar = s.operands["bar"].barrier
            for i in range(bar.stages):
                take(("named", bar, i), sum(tally.named.get(("named", bar, i), {}).values()), s)
        elif scope == "role":
            role = s.operands["role"]
            if role.unit == "warpgroup" and role.count == 1:
                take(("warpgroup", role.name, 0), 128, s)
                named[("role", role.name)] = named[("warpgroup", role.name, 0)]
            else:
                take(("role", role.name), 32 * role.warps, s)
        elif scope == "warpgroup" and s.role in roles:
            for i in range(roles[s.role].count):
                take(("warpgroup", s.role, i), 128, s)
    return named, diagnostics
