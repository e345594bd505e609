"""The memory map of a CTA: where every tile and barrier lies, how much is used of what the target has, and the lines
between the first and the last access of each tile (its lifetime)."""

from __future__ import annotations

from typing import Any

from analyses.context import Context
from cake_ir.bound import Buffer, For, While
from cake_ir.derive.memory import buffer_bytes, tmem_cols


def _lifetime(ctx: Context, buffer: Buffer) -> tuple[int | None, int | None]:
    lines = [o.span.line for o, v in ctx.views if v.buffer is buffer]
    return (min(lines), max(lines)) if lines else (None, None)


def _in_loop(ctx: Context, buffer: Buffer) -> bool:
    from cake_ir.bound import Op, View, walk

    return any(
        isinstance(v, View) and v.buffer is buffer
        for s in ctx.statements
        if isinstance(s, (For, While))
        for o in walk(s.body)
        if isinstance(o, Op)
        for v in o.operands.values()
    )


def memory_table(ctx: Context) -> dict[str, Any]:
    """{"shared": {used, asked, limit, left, rows: [...]}, "tensor": {...}}; bytes, and columns for tensor memory."""
    d, target = ctx.derived, ctx.bound.target
    rows: list[dict[str, Any]] = []
    for b, offset in d.smem.items():
        first, last = _lifetime(ctx, b)
        rows.append(
            {
                "name": b.name,
                "kind": "tile",
                "offset": offset,
                "bytes": buffer_bytes(b),
                "stages": b.stages,
                "stage_stride": d.stage_stride[b],
                "shape": f"{b.dtype}[{', '.join(map(str, b.dims))}]",
                "swizzle": b.swizzle,
                "over": b.over.name if b.over else None,
                "first_line": first,
                "last_line": last,
                "in_loop": _in_loop(ctx, b),
            }
        )
    for bar, offset in d.barrier_offset.items():
        rows.append(
            {"name": bar.name, "kind": "mbarrier", "offset": offset, "bytes": 8 * bar.stages, "stages": bar.stages}
        )
    if d.tmem_slot is not None:
        rows.append({"name": "tensor memory address", "kind": "word", "offset": d.tmem_slot, "bytes": 4, "stages": 1})
    limit = target.value("smem_per_block")
    out: dict[str, Any] = {
        "shared": {
            "used": d.smem_used,
            "asked": d.smem_bytes,
            "limit": limit,
            "left": limit - d.smem_bytes,
            "align": d.align,
            "ctas_per_sm": ctx.bound.launch.ctas_per_sm,
            "rows": sorted(rows, key=lambda r: (r["offset"], r["name"])),
        }
    }
    if d.tmem:
        tensor = []
        for b, column in d.tmem.items():
            first, last = _lifetime(ctx, b)
            tensor.append(
                {
                    "name": b.name,
                    "column": column,
                    "columns": tmem_cols(b) * b.stages,
                    "stages": b.stages,
                    "over": b.over.name if b.over else None,
                    "first_line": first,
                    "last_line": last,
                }
            )
        out["tensor"] = {
            "columns": d.tmem_columns,
            "limit": target.value("tmem_columns"),
            "owner": d.tmem_owner.name if d.tmem_owner else None,
            "rows": tensor,
        }
    return out


def render(table: dict[str, Any]) -> str:
    """The map as text."""
    if not table:
        return ""
    s = table["shared"]
    lines = [
        f"shared memory: {s['asked']} B of {s['limit']} B per block ({s['used']} B used, base aligned to {s['align']})"
    ]
    for r in s["rows"]:
        life = f"lines {r['first_line']}-{r['last_line']}" if r.get("first_line") else ""
        over = f" over {r['over']}" if r.get("over") else ""
        shape = r.get("shape", r["kind"])
        lines.append(
            f"  {r['offset']:>7} +{r['bytes']:<7} {r['name']:<12} {shape} x{r['stages']}{over} {life}".rstrip()
        )
    if "tensor" in table:
        t = table["tensor"]
        lines.append(f"tensor memory: {t['columns']} of {t['limit']} columns, allocated by {t['owner']}")
        lines += [f"  {r['column']:>7} +{r['columns']:<7} {r['name']:<12} x{r['stages']}" for r in t["rows"]]
    return "\n".join(lines)
