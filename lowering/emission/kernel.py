"""The whole kernel: parameters, prologue, one branch per role, what every thread does at the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cake_ir.bound import BoundKernel, Op, Role, RoleBlock, ScalarVar, walk
from lowering.emission import marks, statements
from lowering.emission.context import Context
from lowering.emission.marks import Marks, Stretch
from lowering.emission.project import (
    Block,
    Node,
    all_reads,
    has_wide_sync,
    is_wide_sync,
    last_reads,
    number,
    project,
)
from lowering.emission.regions import pointee
from lowering.emission.writer import Writer, source_file
from lowering.helpers import TENSOR_MAP, matrix

THREADS = {
    "lane": "cake::lane_id()",
    "warp": "cake::warp_index()",
    "wwarp": "warp & 3",
    "wtid": "static_cast<int>(threadIdx.x & 127u)",
}


def emit_kernel(
    kernel: BoundKernel, derived: Any, timeline: bool = False, resident: int | None = None
) -> tuple[str, Context]:
    """(CUDA C++ text, the context with promises, records and parameters)."""
    c = Context(kernel, derived, Writer(source_file(kernel.source_name, kernel.name)))
    c.marks = Marks(kernel) if timeline else None
    for name in (kernel.name, *(t.name for t in kernel.tensors)):
        if name == kernel.name:
            c.names.symbol(kernel, name)
        else:
            c.names.of(next(t for t in kernel.tensors if t.name == name), name)
    body, tail = _split_tail(kernel)
    out = c.out
    out.open("")  # the signature goes here when the parameters are known
    prologue_at = out.mark()
    _roles(c, body)
    c.role, c.unit = None, "K"
    for op in tail:
        if c.marks is not None:
            c.marks.tail(c, op)
        statements.statement(c, Node(op))
    out.at(kernel.span)
    _release_tensor_memory(c, bool(tail))
    if c.marks is not None:
        c.marks.end(c)
    out.close()
    out.insert(prologue_at, _prologue(c))
    text = out.render()
    assert text.startswith("{\n")
    signature = _signature(c, max(resident or 1, derived.launch.ctas_per_sm))
    head = TENSOR_MAP + "\n" if c.maps else ""
    return f"{head}{c.helpers.render()}\n{signature} {text}", c


def _split_tail(kernel: BoundKernel) -> tuple[tuple[Any, ...], list[Op]]:
    """(body, the wide syncs at its very end): the end is run by all threads together, after the roles' branches."""
    body = list(kernel.body)
    tail: list[Op] = []
    while body and isinstance(body[-1], Op) and is_wide_sync(body[-1]):
        tail.insert(0, body[-1])
        body.pop()
    return tuple(body), tail


# ---- roles ------------------------------------------------------------


def _roles(c: Context, body: tuple[Any, ...]) -> None:
    """One branch per warpgroup's roles; setmaxnreg stands above the roles that share a warpgroup, since its four warps
    execute one and the same instruction (PTX ISA, setmaxnreg: .sync.aligned)."""
    groups: list[list[Role]] = []
    for role in c.kernel.roles:
        shares = bool(groups) and role.first_warp % 4 and c.derived.launch.setmaxnreg.get(role.name) is not None
        if not shares:
            groups.append([])
        groups[-1].append(role)
    _branches(c, [(g[-1].first_warp + g[-1].warps, g) for g in groups], lambda g: _warpgroup(c, g, body))
    c.out.close()


def _branches(c: Context, arms: list[tuple[int, Any]], emit: Callable[[Any], None]) -> None:
    """if (warp < end) {...} else if ... ; the last brace stays open."""
    for i, (end, arm) in enumerate(arms):
        head = f"if ({c.sx(c.thread('warp'))} < {end})"
        if len(arms) == 1:
            c.out.open("")
        elif i == 0:
            c.out.open(head)
        elif i == len(arms) - 1:
            c.out.middle("} else {")
        else:
            c.out.middle("} else " + head + " {")
        emit(arm)


def _warpgroup(c: Context, roles: list[Role], body: tuple[Any, ...]) -> None:
    """The roles of one branch: one role, or several of one warpgroup with one setmaxnreg."""
    if len(roles) == 1:
        _role(c, roles[0], body)
        return
    c.out.at(roles[0].span)
    _set_registers(c, roles[0])
    _branches(c, [(r.first_warp + r.warps, r) for r in roles], lambda r: _role(c, r, body, shared=True))
    c.out.close()


def _set_registers(c: Context, role: Role) -> None:
    change = c.derived.launch.setmaxnreg.get(role.name)
    if change is None:
        return
    c.out.line(f"{c.helpers.use('set_registers_' + change.kind)}<{change.registers}>();")
    c.span = role.span
    c.promise("role", f"setmaxnreg.{change.kind}")


def _role(c: Context, role: Role, body: tuple[Any, ...], shared: bool = False) -> None:
    out = c.out
    c.role = role
    out.at(role.span)
    c.wgmma_open.clear()
    c.wgmma_groups.clear()
    c.pending_tmem.clear()
    c.tcgen05_touched = False
    out.line(f"// {role.name}: {role.count} x {role.unit}")
    if not shared:
        _set_registers(c, role)
    block = project(body, role)
    number(block)
    begin = c.marks.place(role, block) if c.marks is not None else None
    c.read, c.last_read = set(all_reads(block)), last_reads(block)
    c.loop_marks, c.fresh_values = [], []
    if role.unit == "thread":
        _thread_role(c, role, block, begin)
        return
    c.unit = "K"
    instance = f"warp - {role.first_warp}" if role.first_warp else "warp"
    if role.unit == "warpgroup":
        instance = f"({instance}) >> 2" if role.first_warp else "warp >> 2"
    aliases = [s.instance for s in walk(body) if isinstance(s, RoleBlock) and s.role is role and s.instance is not None]
    for v in aliases:
        c.alias(v, "instance")
    mark = out.mark()
    c.used.discard("instance")
    c.unit = {"warp": "W", "warpgroup": "G"}[role.unit]
    if c.marks is not None and begin is not None:
        c.marks.start(c, begin, statements.first_thread(c))
    _body(c, block)
    text = "\n".join(t for _, t, _ in out.since(mark))
    if _mentions(text, "instance"):
        c.thread("warp")
        c.used.add("warp")
        out.insert(mark, [f"const int instance = {instance if role.count > 1 else '0'};"])


def _mentions(text: str, name: str) -> bool:
    import re

    return re.search(rf"\b{name}\b", text) is not None


def _thread_role(c: Context, role: Role, block: Block, begin: Stretch | None) -> None:
    """One elected thread runs the role. If the role meets barriers of all threads on its way, its warps run the control flow
    together and one thread the ops: lanes that went ahead to the barrier by a path of their own would share uniform registers
    with the elected one, and ptxas gives both paths the same ones (seen on an H200: a loop counter overwritten)."""
    out = c.out
    c.unit = "T"
    if not block.nodes:
        return
    one = f"{c.helpers.use('elect_one')}()" if c.has("elect") else f"{c.sx(c.thread('lane'))} == 0"
    first = f"{c.sx(c.thread('warp'))} == {role.first_warp} && {one}" if role.warps > 1 else one
    if has_wide_sync(block):
        out.line(f"const bool leader = {first};")
        if c.marks is not None and begin is not None:
            c.marks.start(c, begin, "leader")
        c.led = True
        _body(c, block)
        c.led = False
        return
    out.open(f"if ({first})")
    if c.marks is not None and begin is not None:
        c.marks.start(c, begin, "")
    _body(c, block)
    out.close()
    out.line("__syncwarp();")


def _body(c: Context, block: Block) -> None:
    statements.block(c, block)


# ---- prologue, end, signature ------------------------------------------------------------


def _prologue(c: Context) -> list[str]:
    """Thread coordinates, barriers, tensor maps, tensor memory; then one CTA or cluster sync publishes them."""
    d, h = c.derived, c.helpers
    lines: list[str] = []
    barriers = [b for b in c.kernel.barriers if b.kind == "mbarrier"]
    shared = bool(d.smem_bytes)
    if shared:
        h.use("smem_address")
        lines.append("extern __shared__ unsigned char smem[];")
        base = "static_cast<int>(cake::smem_address(smem))"
        lines.append(
            f"const int smem_base = ({base} + {d.align - 1}) & ~{d.align - 1};"
            if d.align > 16
            else f"const int smem_base = {base};"
        )
    if d.tmem_columns or barriers or c.maps:
        c.used.add("warp")
    if "wwarp" in c.used or "instance" in c.used:
        c.used.add("warp")
    for name, text in THREADS.items():
        if name in c.used:
            if "cake::" in text:
                h.use(text.split("::")[1].split("(")[0])
            lines.append(f"const int {name} = {text};")
    cluster = c.kernel.launch.cluster
    for v, name in c.builtins.items():
        text = {"cta": "blockIdx.x", "cta_count": "gridDim.x", "cluster_rank": f"blockIdx.x % {cluster}u",
                "cluster_id": f"blockIdx.x / {cluster}u", "cluster_count": f"gridDim.x / {cluster}u"}[v.kind]  # fmt: skip
        lines.append(f"const int {name} = static_cast<int>({text});")
    if c.marks is not None:
        lines += marks.VARIABLES
    for cache, name in c.policies.items():
        lines.append(f"const cake::u64 {name} = {h.use('policy_' + cache)}();")
    if barriers or c.maps:
        lines.append("if (threadIdx.x == 0) {")
        for tensor_map in c.maps.values():
            lines.append(f"  {h.use('prefetch_tensor_map')}(&{tensor_map});")
        for b in barriers:
            count, offset = d.arrivals.get(b, 1), d.barrier_offset[b]
            if b.stages == 1:
                lines.append(f"  {h.use('mbar_init')}(smem_base + {offset}, {count});  // {b.name}")
            else:
                lines.append(
                    f"  for (int i = 0; i < {b.stages}; ++i) {h.use('mbar_init')}(smem_base + {offset} + 8 * i, {count});  // {b.name}"
                )
        if barriers and c.has("mbarrier_try_wait"):
            lines.append(f"  {h.use('mbar_init_fence')}();")
        lines.append("}")
    if d.tmem_columns:
        owner = d.tmem_owner or c.kernel.roles[0]
        alloc = h.add(*matrix.tcgen05_alloc(c.cta_group))
        lines.append(f"if (warp == {owner.first_warp}) {alloc}<{d.tmem_columns}>(smem_base + {d.tmem_slot});")
        lines.append(f"{h.add(*matrix.TCGEN05_FENCE_BEFORE)}();")
    if barriers or d.tmem_columns:
        meet = "cluster_sync" if d.tmem_columns else "cluster_meet"  # the tensor memory's address is a plain store
        lines.append(f"{h.use(meet)}();" if cluster > 1 else "__syncthreads();")
    if d.tmem_columns:
        lines.append(f"{h.add(*matrix.TCGEN05_FENCE_AFTER)}();")
        lines.append(
            "const int tmem_base = *reinterpret_cast<volatile int*>(smem + (smem_base - static_cast<int>(cake::smem_address(smem))) + "
            f"{d.tmem_slot});"
        )
    return lines


def _release_tensor_memory(c: Context, synced: bool) -> None:
    d = c.derived
    if not d.tmem_columns:
        return
    owner = d.tmem_owner or c.kernel.roles[0]
    cluster = c.kernel.launch.cluster
    if not synced:
        c.out.line(f"{c.helpers.use('cluster_sync')}();" if cluster > 1 else "__syncthreads();")
    c.out.line(f"{c.helpers.add(*matrix.TCGEN05_FENCE_AFTER)}();")
    dealloc = c.helpers.add(*matrix.tcgen05_dealloc(c.cta_group))
    c.out.line(
        f"if ({c.sx(c.thread('warp'))} == {owner.first_warp}) {dealloc}<{d.tmem_columns}>(static_cast<cake::u32>(tmem_base));"
    )
    c.span = owner.span
    c.promise("tmem", "tcgen05.alloc")
    c.promise("tmem", "tcgen05.dealloc")


def parameters(c: Context) -> list[tuple[str, Any, str]]:
    """(kind, object, C declaration) in signature order: tensors, tensor maps, extents, scalars, the number of SMs."""
    found: list[tuple[str, Any, str]] = []
    for t in c.kernel.tensors:
        if t in c.tensors:
            qualifier = "const " if t.direction in ("In", "Const") else ""
            found.append(("tensor", t, f"{qualifier}{pointee(t.dtype)}* {c.tensors[t]}"))
    for m in c.derived.tensor_maps:
        if m in c.maps:
            found.append(("tensor_map", m, f"const __grid_constant__ CUtensorMap {c.maps[m]}"))
    ordered = [*c.kernel.dims.values(), *c.kernel.args, *c.kernel.builtins.values()]
    seen: set[ScalarVar] = set()
    for v in (*ordered, *c.scalars_used):
        if v in c.scalars_used and v not in seen:
            seen.add(v)
            kind = "f32" if v.dtype == "f32" else "i32"
            found.append((kind, v, f"{'float' if kind == 'f32' else 'int'} {c.scalars_used[v]}"))
    return found + (marks.PARAMETERS if c.marks is not None else [])


def _signature(c: Context, resident: int) -> str:
    launch = c.derived.launch
    cluster = f" __cluster_dims__({launch.cluster}, 1, 1)" if launch.cluster > 1 else ""
    args = ", ".join(declaration for _, _, declaration in parameters(c))
    symbol = c.names.symbol(c.kernel, c.kernel.name)
    return f'extern "C" __global__ void{cluster} __launch_bounds__({launch.threads}, {resident})\n{symbol}({args})'
