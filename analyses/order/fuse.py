"""Loops of their own, side by side: `with p: for k in R: X` then `with m: for k in R: Y` as one loop over both.

Each agent runs the same ops in the same order before and after, since it belongs to one role; only the order of the text changes, and
with it what "earlier in the text" means for the cutoff argument.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from cake_ir.bound import SX, BoundKernel, For, RoleBlock, SConst, SetScalar, SVar

Same = Callable[[For, For], bool]


def fused(bound: BoundKernel, alike: Same) -> BoundKernel:
    """The kernel with equal loops of different roles joined; the kernel itself where there are none."""
    body = _block(bound.body, alike)
    return bound if body is bound.body else replace(bound, body=body)


def _block(body: tuple[Any, ...], alike: Same) -> tuple[Any, ...]:
    out: list[Any] = []
    run: list[RoleBlock] = []
    changed = False

    def close(upto: int) -> None:
        nonlocal changed
        joined = _join(run[:upto], alike)
        changed = changed or joined is not None
        out.extend(run[:upto] if joined is None else joined)
        del run[:upto]

    for s in body:
        if isinstance(s, RoleBlock):
            close(1 + max((i for i, r in enumerate(run) if r.role is s.role), default=-1))
            run.append(s)
            continue
        close(len(run))
        if isinstance(s, For):
            inner = _block(s.body, alike)
            changed = changed or inner is not s.body
            out.append(s if inner is s.body else replace(s, body=inner))
        else:
            out.append(s)
    close(len(run))
    return tuple(out) if changed else body


def _loop(s: RoleBlock) -> int | None:
    """Where the only loop of unknown length at the top of a role block stands."""
    at = [
        i
        for i, x in enumerate(s.body)
        if isinstance(x, For) and not all(isinstance(b, SConst) for b in (x.start, x.stop, x.step))
    ]
    return at[0] if len(at) == 1 else None


def _join(run: list[RoleBlock], alike: Same) -> list[Any] | None:
    """The blocks before the joint loop, the loop, the blocks after it; None when fewer than two have the loop."""
    first: For | None = None
    before: list[Any] = []
    body: list[Any] = []
    after: list[Any] = []
    count = 0
    for s in run:
        at = _loop(s)
        loop = s.body[at] if at is not None else None
        if at is None or not isinstance(loop, For) or (first is not None and not alike(first, loop)):
            (after if first is not None else before).append(s)
            continue
        count += 1
        first = first or loop
        inside: tuple[Any, ...] = loop.body
        if loop is not first:  # the name of the round in this role
            value: SX = SVar(first.var)
            inside = (SetScalar(loop.var, value, loop.span), *inside)
        for part, where in ((s.body[:at], before), (inside, body), (s.body[at + 1 :], after)):
            if part:
                where.append(replace(s, body=part))
    if first is None or count < 2:
        return None
    return [*before, replace(first, body=_block(tuple(body), alike)), *after]
