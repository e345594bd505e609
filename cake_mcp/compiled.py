"""Route tables and compiled kernels: where the dispatcher finds them, and how they are made where they are missing.

Tables: `$CAKE_TABLES_DIR` first, then those that come with Cake. Cubins: the user's cache (`$CAKE_CACHE_DIR`, else
`~/.cache/cake/cubins`), by the key that the table names. A hit reads one file; a miss binds, emits and compiles the variant.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from cake_ir.fault import CakeError, fault
from corpus import routes
from corpus.routes import Table, Variant
from lowering.cache import CubinCache, user_directory


def directories() -> list[Path]:
    """Where tables are looked for, in order."""
    own = os.environ.get("CAKE_TABLES_DIR")
    return [*([Path(own)] if own else []), routes.DIRECTORY]


@cache
def table(family: str, target: str) -> Table:
    """The table of a family on a target; raises CakeError `dispatch/no-table` or `dispatch/bad-table`."""
    *own, shipped = directories()
    for directory in own:
        if (directory / f"{family}.{target}.json").is_file():
            return routes.load(family, target, directory)
    return routes.load(family, target, shipped)


def cubin(source: Table, variant: Variant, key: str) -> bytes:
    """The compiled kernel `key` of a variant.

    Raises CakeError: `dispatch/cubin-missing` (not in the cache, and no compiler here), `dispatch/stale-table`, or what
    compiling raises.
    """
    found = CubinCache(user_directory()).cubin(key)
    if found is not None:
        return found
    from cake_mcp.fallback import log

    log(
        "cake.compile",
        family=source.family,
        variant=variant.id,
        why="not in the cubin cache; the first call waits for the compiler",
    )
    try:
        from corpus.recipes import compile_variant

        return compile_variant(variant, source.target, user_directory())[key]
    except (CakeError, ImportError) as exc:
        if isinstance(exc, CakeError) and exc.diagnostic.rule != "lowering/compiler-missing":
            raise
        raise fault(
            "dispatch/cubin-missing",
            f"variant {variant.id} of {source.family} is not in {user_directory()} and there is no compiler here: pip install "
            f"'cake-mcp[cuda]', or run cake_mcp.prepare({source.family!r}, {source.target!r}) on a machine that has it and copy that "
            "directory (CAKE_CACHE_DIR names it)",
            contract="A variant that is chosen has its cubin in the cache, or can be compiled.",
        ) from None  # fmt: skip
