"""What ops do to memory and registers: every access is compared with the earlier ones that it meets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from analyses.order import explain
from analyses.order.conflicts import conflict
from analyses.order.globals import Globals
from analyses.order.log import Log
from analyses.order.shadow import Access, Storage
from analyses.order.units import Unit
from cake_ir.bound import Let, View
from cake_ir.skeleton import Event, RegionAt, ViewAt, fragments

if TYPE_CHECKING:
    from cake_ir.bound import BoundKernel
    from cake_ir.derive import Derived

ASYNC = frozenset({"tma", "bulk", "wgmma", "tc"})
"""Engines that reach shared memory through the async proxy."""


class Accesses(Globals):
    """The part of the machine that handles ops with memory or register effects."""

    bound: BoundKernel
    derived: Derived
    storage: Storage
    cluster: int
    pdl: bool
    log: Log
    units: list[Unit]
    let_reads: dict[Let, tuple[Any, ...]]
    remote: list[tuple[int, list[tuple[int, int]], Event, Unit]]

    def access_handlers(self) -> dict[str, Any]:
        """Handlers by op name."""
        table: dict[str, Any] = {
            "load": self.on_load,
            "load_scalar": self.on_load,
            "ldmatrix": self.on_load,
            "store": self.on_store,
            "store_scalar": self.on_store,
            "stmatrix": self.on_store,
            "wgmma": self.on_wgmma,
            "wgmma_commit": self.on_wgmma_commit,
            "wgmma_wait": self.on_wgmma_wait,
            "mma": self.on_mma,
            "tcgen05_mma": self.on_tcgen05_mma,
            "cp_async": self.on_cp_async,
            "cp_async_commit": self.on_cp_commit,
            "cp_async_wait": self.on_cp_wait,
            "bulk_commit": self.on_bulk_commit,
            "bulk_wait_read": self.on_bulk_wait,
            "bulk_wait": self.on_bulk_wait,
            "tmem_load": self.on_tmem_load,
            "tmem_load_wait": self.on_tmem_load_wait,
            "tmem_store": self.on_tmem_store,
            "tmem_store_wait": self.on_tmem_store_wait,
        }
        table.update(dict.fromkeys(("tma_store", "tma_reduce", "bulk_store", "bulk_reduce"), self.on_copy_out))
        table.update({f"atomic_{op}": self.on_atomic for op in ("add", "min", "max", "fetch_add")})
        return table

    # ---- comparing

    def touch(
        self,
        u: Unit,
        e: Event,
        v: ViewAt,
        mode: str,
        engine: str,
        thread: bool,
        comp: int,
        epoch: int,
        fence: int,
        lanes: Any,
        whole: bool = True,
    ) -> None:
        """One access of a view: compared with what it meets, then recorded. mode: read | write | update."""
        if v.use < 0:
            explain.negative_view(self, u, e, v, mode)
        ticks = (u.tick, u.tick_l)
        proxy = engine in ASYNC and v.view.buffer.space == "smem"
        for cell, box in self.storage.locate(v):
            a = Access(box, comp, epoch, fence, u, e, lanes, engine, ticks, v, thread)
            r0, r1, c0, c1 = box
            for p in cell.writes.values():
                q = p.box
                if (
                    q[0] < r1
                    and r0 < q[1]
                    and q[2] < c1
                    and c0 < q[3]
                    and (fault := self.fault(u, thread, p, a, proxy))
                ):
                    conflict(self, p, a, v, "write", mode, fault)
            if mode != "write":
                if cell.uncovered(box):
                    a.blank = True
                    if engine == "wgmma":
                        u.blanks.update(((f, e.node.site), (e, v)) for f in accumulator(e))
                    else:
                        explain.uninitialised(self, u, e, v)
                else:
                    if cell.holes(box):
                        explain.uninitialised(self, u, e, v, holes=True)
                    if cell.shared:
                        explain.overlay(self, a, cell)
                cell.note_read(a)
            if mode != "read":
                for p in cell.reads.values():
                    q = p.box
                    if (
                        q[0] < r1
                        and r0 < q[1]
                        and q[2] < c1
                        and c0 < q[3]
                        and (p.unit is not u or p.event is not e)
                        and (fault := self.fault(u, thread, p, a, proxy))
                    ):
                        conflict(self, p, a, v, "read", mode, fault)
                cell.note_write(a, whole)

    @staticmethod
    def fault(u: Unit, thread: bool, p: Access, a: Access, proxy: bool) -> str | None:
        """None when p is over and visible; 'order' when nothing orders it, 'fence' when only the proxy fence is
        missing."""
        known = u.KL if thread else u.K
        owner = p.unit
        if known[p.comp] < p.epoch and not owner.over(known, p.comp, p.epoch):
            comp = p.comp
            same = (
                (comp == u.L and thread)
                or (comp == u.R and not thread and p.lanes is not None and p.lanes == a.lanes and p.box == a.box)
                or (comp == u.R and not thread and u.met >= p.epoch and one_warp(p, a))
                or (comp == u.TC and a.engine == "tc")
                # each warp touches its own lanes; one thread that issues for all of them needs a sync first
                or (comp == u.TLD and not thread and u.tld_done >= p.epoch)
                or (comp == u.TST and not thread and u.tst_done >= p.epoch)
                or (owner is u.parent and own_share(u, p, a, known))
            )
            if not same:
                return "order"
        if (
            proxy
            and p.fence >= 0
            and known[p.fence] < p.epoch
            and not owner.over(known, p.fence, p.epoch)
            and not (p.comp == u.L and thread and u.fenced_l >= p.epoch)
            and not (owner is u.parent and p.fence == owner.RF and known[u.part[1]] >= p.epoch)
        ):
            return "fence"
        return None

    def plain(self, u: Unit, e: Event, v: ViewAt, mode: str, lanes: Any, whole: bool = True) -> None:
        """An access of the generic proxy."""
        if e.thread:
            self.touch(u, e, v, mode, "generic", True, u.L, u.tick_l, u.LF, lanes, whole)
        else:
            self.touch(u, e, v, mode, "generic", False, u.R, u.tick, u.RF, lanes, whole)
        if v.cta != u.cta:
            self.remote.append((v.cta, [(u.L, u.tick_l) if e.thread else (u.R, u.tick)], e, u))

    # ---- plain loads and stores

    def on_load(self, u: Unit, e: Event) -> bool:
        v = e.vals.get("src", e.vals.get("view"))
        if isinstance(v, ViewAt):
            self.plain(u, e, v, "read", lane_key(e, v))
        elif isinstance(v, RegionAt):
            self.check_global(u, e, "src", e.thread)
            self.plain_global(u, e, "src", "read")
            if u.tracks and e.node.site in self.poll_sites:
                self.polled(u, e)
        for r in e.node.results:
            u.frags.pop(r, None)  # type: ignore[call-overload]
        return False

    def on_store(self, u: Unit, e: Event) -> bool:
        v = e.vals.get("dst", e.vals.get("view"))
        if isinstance(v, ViewAt):
            self.plain(u, e, v, "write", lane_key(e, v), e.node.operands.get("when") is None)
        elif isinstance(v, RegionAt):
            self.check_global(u, e, "dst", e.thread)
            self.plain_global(u, e, "dst", "write")
        return False

    def on_atomic(self, u: Unit, e: Event) -> bool:
        self.check_global(u, e, "region", e.thread)
        self.plain_global(u, e, "region", "update")
        for r in e.node.results:
            u.frags.pop(r, None)  # type: ignore[call-overload]
        return False

    def plain_global(self, u: Unit, e: Event, operand: str, mode: str) -> None:
        """An access of global memory through the generic proxy. Loaded values are there, so that a copy which overwrites
        what was loaded needs no fence."""
        if not u.tracks:
            return
        comp, epoch, fence = (u.L, u.tick_l, u.GLF) if e.thread else (u.R, u.tick, u.GF)
        self.touch_global(u, e, operand, mode, "generic", e.thread, comp, epoch, -1 if mode == "read" else fence)

    def check_global(self, u: Unit, e: Event, operand: str, thread: bool) -> None:
        """Memory that predecessor grids may touch, before this role's griddep_wait."""
        if not self.pdl or (u.dep_l if thread or u.single else u.dep):
            return
        at = e.vals.get(operand)
        if isinstance(at, RegionAt) and at.region.tensor.direction != "Const":
            explain.griddep(self, u, e, at)

    # ---- asynchronous copies

    def on_copy_out(self, u: Unit, e: Event) -> bool:
        self.check_global(u, e, "region", e.thread)
        group, comp = (u.bulk_l, u.BL) if e.thread else (u.bulk, u.BR)
        self.touch(u, e, e.vals["view"], "read", "bulk", e.thread, comp, group.issue(e), -1, None)
        if u.tracks:
            mode = "update" if e.node.name.endswith("reduce") else "write"
            self.touch_global(u, e, "region", mode, "bulk", e.thread, u.GLW if e.thread else u.GW, group.current)
        return False

    def on_bulk_commit(self, u: Unit, e: Event) -> bool:
        u.bulk_l.commit()
        if not e.thread:
            u.bulk.commit()
        return False

    def on_bulk_wait(self, u: Unit, e: Event) -> bool:
        k = int(e.node.attrs.get("k", 0))
        u.bulk_l.waited(k, e)
        u.KL[u.BL] = max(int(u.KL[u.BL]), u.bulk_l.done)
        if not e.thread:
            u.bulk.waited(k, e)
            u.KL[u.BR] = max(int(u.KL[u.BR]), u.bulk.done)
        if u.tracks:
            u.KL[u.GLW] = u.bulk_l.written
            u.KL[u.GW] = u.bulk.written
        return False

    def on_cp_async(self, u: Unit, e: Event) -> bool:
        self.check_global(u, e, "region", False)
        self.touch(u, e, e.vals["view"], "write", "cp_async", False, u.CP, u.cp.issue(e), u.CPF, None)
        if u.tracks:
            self.touch_global(u, e, "region", "read", "cp_async", False, u.CP, u.cp.current)
        return False

    def on_cp_commit(self, u: Unit, e: Event) -> bool:
        u.cp.commit()
        return False

    def on_cp_wait(self, u: Unit, e: Event) -> bool:
        u.cp.waited(int(e.node.attrs.get("k", 0)), e)
        return False

    # ---- tensor cores

    def on_wgmma(self, u: Unit, e: Event) -> bool:
        group = u.wg.issue(e)
        if e.vals.get("init", False):
            self.forget_blanks(u, accumulator(e))
        for name in ("a", "b"):
            v = e.vals.get(name)
            if isinstance(v, ViewAt):
                self.touch(u, e, v, "read", "wgmma", False, u.WG, group, -1, None)
            else:
                for f in fragments(e.node.operands.get(name)):
                    if u.frags.get(f, ("", 0, e))[0] != "poison":
                        u.frags[f] = ("wgmma", group, e)
        for acc in accumulator(e):
            state = u.frags.get(acc)
            if state is not None and state[0] == "poison" and not e.vals.get("init", False):
                explain.poison_acc(self, u, e, acc, state[2])
            u.frags[acc] = ("wgmma", group, e)
        return False

    def blank_read(self, u: Unit, f: Any) -> None:
        """A product with what nothing had written is a fault once its sums are used; the last round of a loop may make one
        in vain."""
        for key in [k for k in u.blanks if k[0] is f]:
            explain.uninitialised(self, u, *u.blanks.pop(key))

    @staticmethod
    def forget_blanks(u: Unit, frags: tuple[Any, ...]) -> None:
        """The sums are overwritten unread."""
        for key in [k for k in u.blanks if k[0] in frags]:
            del u.blanks[key]

    def on_wgmma_commit(self, u: Unit, e: Event) -> bool:
        u.wg.commit()
        u.wg_passed.append(u.passed)
        return False

    def on_wgmma_wait(self, u: Unit, e: Event) -> bool:
        u.wg.waited(int(e.node.attrs.get("k", 0)), e)
        u.KL[u.WG] = max(int(u.KL[u.WG]), u.wg.done)
        u.K[u.WG] = u.KL[u.WG]
        # a finished group was issued by all four warps, which had passed the waits before it
        u.converged = max(u.converged, u.wg_passed[u.wg.done])
        for f in [f for f, s in u.frags.items() if s[0] == "wgmma" and s[1] <= u.wg.done]:
            del u.frags[f]
        return False

    def on_mma(self, u: Unit, e: Event) -> bool:
        for acc in accumulator(e):
            state = u.frags.get(acc)
            if state is not None and state[0] == "poison":
                explain.poison_acc(self, u, e, acc, state[2])
            u.frags.pop(acc, None)
        return False

    def on_tcgen05_mma(self, u: Unit, e: Event) -> bool:
        u.tc += 1
        pair = int(e.node.attrs.get("cta_group", 1)) == 2
        ctas = [u.cta] + ([u.cta + 1 if (u.cta % 2 == 0) else u.cta - 1] if pair else [])
        init = bool(e.vals.get("init", False))
        for cta in ctas:
            for name in ("a", "b", "acc"):
                v = e.vals.get(name)
                if isinstance(v, ViewAt):
                    mode = "read" if name != "acc" else "write" if init else "update"
                    self.touch(u, e, v._replace(cta=cta), mode, "tc", True, u.TC, u.tc, -1, None)
            if cta != u.cta:
                self.remote.append((cta, [(u.TC, u.tc)], e, u))
        return False

    def on_tmem_load(self, u: Unit, e: Event) -> bool:
        u.tld += 1
        self.touch(u, e, e.vals["view"], "read", "tld", False, u.TLD, u.tld, -1, None)
        for r in e.node.results:
            u.frags[r] = ("tld", u.tld, e)  # type: ignore[index]
        return False

    def on_tmem_load_wait(self, u: Unit, e: Event) -> bool:
        u.tld_done = u.tld
        for f in [f for f, s in u.frags.items() if s[0] == "tld"]:
            del u.frags[f]
        return False

    def on_tmem_store(self, u: Unit, e: Event) -> bool:
        u.tst += 1
        self.touch(u, e, e.vals["view"], "write", "tst", False, u.TST, u.tst, -1, None)
        return False

    def on_tmem_store_wait(self, u: Unit, e: Event) -> bool:
        u.tst_done = u.tst
        return False

    # ---- registers

    def on_let(self, u: Unit, e: Event) -> None:
        let: Let = e.node
        for f in self.let_reads[let]:
            self.check_read(u, e, f)
        if u.blanks:
            self.forget_blanks(u, (let.frag,))
        state = u.frags.get(let.frag)
        if state is not None and state[0] in ("wgmma", "tld"):
            explain.early(self, u, e, let.frag, state, "written")
        if let.value is None:
            u.frags[let.frag] = ("poison", 0, e)
        else:
            u.frags.pop(let.frag, None)

    def check_registers(self, u: Unit, e: Event, reads: tuple[Any, ...]) -> None:
        """Fragments that an op reads (accumulators of products apart)."""
        for f in reads:
            self.check_read(u, e, f)

    def check_read(self, u: Unit, e: Event, f: Any) -> None:
        if u.blanks:
            self.blank_read(u, f)
        state = u.frags.get(f)
        if state is None:
            return
        if state[0] == "poison":
            explain.poison(self, u, e, f, state[2])
        elif not (
            state[0] == "wgmma" and state[2].node.operands.get("a") is not None and f not in accumulator(state[2])
        ):
            explain.early(self, u, e, f, state, "read")


def own_share(u: Unit, p: Access, a: Access, known: Any) -> bool:
    """Whether what a warp inside warps() touches is, of an access by its whole warpgroup before its last sync(warp), the part
    that its own lanes made. cp.async spreads rows over threads as it likes and counts as own."""
    group = p.unit
    if p.comp == group.CP:
        return p.epoch <= known[u.part[4]]
    if p.comp != group.R or p.epoch > known[u.part[0]]:
        return False
    shares = warp_rows(p)
    if shares is None or a.view.view.buffer is not p.view.view.buffer:
        return False
    period, rows = shares
    first, last = max(a.view.row0, p.view.row0), min(a.view.row1, p.view.row1)
    return all((r - p.view.row0) % period // rows == u.warp for r in range(first, last))


def one_warp(p: Access, a: Access) -> bool:
    """Whether two accesses of a whole warpgroup put each row that they share into the same warp."""
    before, now = warp_rows(p), warp_rows(a)
    if before is None or now is None or a.view.view.buffer is not p.view.view.buffer:
        return False
    first, last = max(a.view.row0, p.view.row0), min(a.view.row1, p.view.row1)
    return all(
        (r - p.view.row0) % before[0] // before[1] == (r - a.view.row0) % now[0] // now[1] for r in range(first, last)
    )


def warp_rows(p: Access) -> tuple[int, int] | None:
    """(period, rows): row r of what a warpgroup loads or stores belongs to warp r % period // rows; None where the layout
    does not cut it by rows."""
    op = p.event.node
    tile = op.results[0].type if op.results else getattr(op.operands.get("x"), "type", None)
    if tile is None or tile.axis is not None or p.view.view.transposed:
        return None
    layout = tile.layout
    if layout.name == "wgmma_d":
        return 64, 16
    if layout.name == "tmem_d":
        return 128, 32
    if layout.name == "vec" and 0 < layout.l <= 32:
        return tile.threads // layout.l, 32 // layout.l
    return None


def accumulator(e: Event) -> tuple[Any, ...]:
    """The accumulator fragment of a product."""
    acc = e.node.operands.get("acc")
    return tuple(fragments(acc))


def lane_key(e: Event, v: ViewAt) -> Any:
    """Equal keys: the same lane touches each element of the view in both accesses. Only decided for plain tiles."""
    op = e.node
    if op.name in ("load_scalar",):
        return None
    if op.name == "store_scalar":
        return "first lane"
    if op.name in ("ldmatrix", "stmatrix"):
        return None
    tile = op.results[0].type if op.name == "load" and op.results else getattr(op.operands.get("x"), "type", None)
    if tile is None:
        return None
    view: View = v.view
    return (str(tile.layout), tile.rows, tile.cols, tile.axis, tile.threads, view.transposed)
