"""The op registry: every op the language has, each declared once in its family's file."""

from __future__ import annotations

from functools import lru_cache

from cake_ir.ops.decl import Access, OpDecl, Param, Sync

__all__ = ["Access", "OpDecl", "Param", "Sync", "registry"]


@lru_cache(maxsize=1)
def registry() -> dict[str, OpDecl]:
    """All ops by name, in family order (copies, matrix, sync, registers)."""
    from dataclasses import replace

    from cake_ir.ops import copies, matrix, registers, sync

    table: dict[str, OpDecl] = {}
    for family, module in (("copies", copies), ("matrix", matrix), ("sync", sync), ("registers", registers)):
        for decl in module.OPS:
            if decl.name in table:
                raise RuntimeError(f"op {decl.name} is declared twice")
            table[decl.name] = replace(decl, family=family)
    return table
