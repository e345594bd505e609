"""What the dispatcher would do, and compiling ahead of the first call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cake_ir.fault import CakeError, fault
from cake_mcp import compiled
from corpus import routes
from corpus.routes import Choice


def explain(family: str, dims: Mapping[str, int], dtype: str = "bf16", *, target: str | None = None) -> Choice:
    """The route of a shape: variant, why, and the measurements that pay for it.

    Args:
        family: for example "kmeans_assign".
        dims: extents by name (B, N, C, D for k-means; M, N, K for products).
        dtype: Cake's name of the element type.
        target: by default that of GPU 0, or of the only table there is where no GPU is.

    Raises:
        CakeError: `dispatch/no-table`, `dispatch/not-admitted`, `dispatch/bad-dims`.
    """
    sms = None
    if target is None:
        from cake_mcp.operation import gpu

        try:
            device = gpu(0)
            target, sms = device.target, device.sms
        except CakeError:
            found = targets(family)
            if not found:
                raise _no_table(family, None) from None
            if len(found) > 1:
                raise
            target = found[0]
    return routes.choose(compiled.table(family, target), dims, dtype, sms)


def targets(family: str) -> list[str]:
    """Targets that the family has a table for."""
    if not family.isidentifier():
        return []
    return sorted({p.name.split(".")[1] for d in compiled.directories() for p in d.glob(f"{family}.*.json")})


def prepare(family: str | None = None, target: str | None = None) -> dict[str, int]:
    """Compile every variant of the tables into the cubin cache, so that no call waits for the compiler. Needs no GPU.

    Args:
        family: one family; all that have a table when left out.
        target: one target; all that have a table when left out.

    Returns:
        Compiled kernels in the cache by table ("kmeans_assign.sm_90a").

    Raises:
        CakeError: `dispatch/no-table`, `dispatch/stale-table`, `lowering/compiler-missing`, and the compiler's own.
    """
    from concurrent.futures import ThreadPoolExecutor
    from itertools import repeat

    from corpus.recipes import compile_variant
    from lowering.cache import user_directory

    names = sorted(
        {
            (family_, target_)
            for d in compiled.directories()
            for p in d.glob("*.*.json")
            for family_, target_ in [p.name.removesuffix(".json").split(".", 1)]
            if family in (None, family_) and target in (None, target_)
        }
    )
    if not names:
        raise _no_table(family, target)
    out: dict[str, int] = {}
    with ThreadPoolExecutor(2) as pool:  # the compiler is a process of its own
        for name in names:
            variants = list(compiled.table(*name).variants.values())
            made: list[dict[str, Any]] = list(
                pool.map(compile_variant, variants, repeat(name[1]), repeat(user_directory()))
            )
            out[".".join(name)] = len({key for cubins in made for key in cubins})
    return out


def _no_table(family: str | None, target: str | None) -> CakeError:
    known = sorted({p.name.split(".")[0] for d in compiled.directories() for p in d.glob("*.*.json")})
    return fault(
        "dispatch/no-table",
        f"there is no table of {family or 'any family'} for {target or 'any target'} (tables of: {', '.join(known) or 'none'}); "
        f"make one with `cake tune{' ' + family if family else ''}`",
        contract="Variants are those of the tables.",
    )  # fmt: skip
