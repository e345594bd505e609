"""Results that are kept with the kernel they were computed from.

A module-level table keyed weakly by the kernel would never let go of it: the results refer to the kernel. Kept inside the
kernel they form a cycle with it, which the collector frees.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from cake_ir.bound import BoundKernel

T = TypeVar("T")


def memo(bound: BoundKernel, key: str, make: Callable[[], T]) -> T:
    """`make()`, once per bound object and key. A copy that shares `notes` starts anew."""
    owner, store = bound.notes.get("memo", (None, {}))
    if owner is not bound:
        store = {}
        bound.notes["memo"] = (bound, store)
    if key not in store:
        store[key] = make()
    return store[key]


def forget(bound: BoundKernel, *keys: str) -> None:
    """Drops kept results, so that they are computed anew."""
    owner, store = bound.notes.get("memo", (None, {}))
    for key in keys if owner is bound else ():
        store.pop(key, None)
