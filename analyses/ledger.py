"""The barrier ledger: for every barrier who arrives (role, ops, how often per use), how many bytes, and who waits."""

from __future__ import annotations

from typing import Any

from analyses.context import Context
from cake_ir.bound import Barrier, BarUse, Op

ARRIVE = ("arrive", "expect", "tcgen05_commit", "cp_async_arrive", "named_arrive")
COPIES = ("tma_load", "bulk_load", "store_async")


def _uses(op: Op) -> BarUse | None:
    return next((v for v in op.operands.values() if isinstance(v, BarUse)), None)


def _row(ctx: Context, bar: Barrier) -> dict[str, Any]:
    arrivals, copies, waits = [], [], []
    for op in ctx.ops:
        use = _uses(op)
        if use is None or use.barrier is not bar:
            continue
        entry: dict[str, Any] = {"role": op.role or "every role", "op": op.name, "line": op.span.line}
        if use.rank is not None:
            entry["remote"] = True
        if op.operands.get("multicast") is not None:
            entry["multicast"] = True
        if op.name == "wait":
            waits.append(entry)
        elif op.name == "sync":
            waits.append(entry)
            arrivals.append(entry)
        elif op.name in ARRIVE:
            if op.name == "expect":
                entry["bytes"] = ctx.derived.expect_bytes.get(op.site, 0)
            arrivals.append(entry)
        elif op.name in COPIES:
            copies.append(entry)
    row: dict[str, Any] = {
        "barrier": bar.name,
        "kind": bar.kind,
        "stages": bar.stages,
        "line": bar.span.line,
        "arrives": arrivals,
        "copies": copies,
        "waits": waits,
    }
    if bar.kind == "mbarrier":
        row["count"] = ctx.derived.arrivals.get(bar)
        row["asserted"] = bar.arrivals
        row["bytes"] = sum(e.get("bytes", 0) for e in arrivals)
    else:
        ids = [ctx.derived.named.get(("named", bar, i)) for i in range(bar.stages)]
        row["ids"] = [i[0] for i in ids if i]
        row["count"] = ids[0][1] if ids and ids[0] else None
    return row


def ledger(ctx: Context) -> tuple[dict[str, Any], ...]:
    """One row per declared barrier, in declaration order."""
    return tuple(_row(ctx, bar) for bar in ctx.bound.barriers)


def render(rows: tuple[dict[str, Any], ...]) -> str:
    """The ledger as text."""

    def who(entries: list[dict[str, Any]]) -> str:
        return ", ".join(f"{e['role']}.{e['op']}@{e['line']}" for e in entries) or "nobody"

    lines = []
    for r in rows:
        size = f", {r['bytes']} B per use" if r.get("bytes") else ""
        lines.append(f"{r['barrier']} ({r['kind']} x{r['stages']}): {r['count']} arrivals per use{size}")
        lines.append(f"  arrives: {who(r['arrives'])}")
        if r["copies"]:
            lines.append(f"  signals: {who(r['copies'])}")
        lines.append(f"  waits:   {who(r['waits'])}")
    return "\n".join(lines)
