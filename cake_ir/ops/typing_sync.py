"""Typing of synchronisation ops."""

from __future__ import annotations

from typing import Any

from cake_ir import bound as B
from cake_ir.ops.typing import Call, check


def mbarrier(call: Call, name: str, remote: bool) -> B.BarUse:
    """The argument as an mbarrier use; waits and expects are local."""
    bar = call.args[name]
    if bar.barrier.kind != "mbarrier":
        call.fail("language/type", f"'{bar.barrier.name}' is a named barrier; {call.decl.name} needs an mbarrier", name)
    if bar.rank is not None and not remote:
        call.fail(
            "hardware/remote-barrier",
            f"{call.decl.name} works on the own CTA's barrier only",
            name,
            "PTX ISA, mbarrier: a remote barrier can be arrived at, not waited for or armed.",
        )
    return bar


@check("wait", "expect")
def _local(call: Call) -> list[Any]:
    mbarrier(call, "bar", remote=False)
    call.keep("bar")
    return []


@check("arrive")
def _arrive(call: Call) -> list[Any]:
    mbarrier(call, "bar", remote=True)
    call.keep("bar")
    return []


@check("named_arrive")
def _named_arrive(call: Call) -> list[Any]:
    call.keep("bar")
    return []


@check("sync")
def _sync(call: Call) -> list[Any]:
    scope, c = call.args["scope"], call.c
    unit, control = c.unit, c.control
    if isinstance(scope, B.BarUse):
        if scope.barrier.kind != "named":
            call.fail("language/type", f"'{scope.barrier.name}' is an mbarrier; use wait and arrive", "scope")
        if unit not in ("W", "G"):
            call.fail("hardware/illegal-unit", "a named barrier is synchronised by warps and warpgroups", "scope")
        call.attrs["scope"], call.operands["bar"] = "named", scope
        return []
    if isinstance(scope, B.Role):
        if c.role is not scope or unit == "T":
            why = f"sync({scope.name}) is executed by all of role {scope.name}"
            if scope.unit == "thread":
                why = f"role {scope.name} is one thread and has nobody to meet; threads of different roles meet at an mbarrier"
            elif unit == "T" and c.role is scope:
                why += "; move it out of `with elected():`"
            call.fail("hardware/illegal-unit", why, "scope")
        if control == "instance" and scope.count > 1:
            call.fail(
                "sync/non-uniform-control",
                f"sync({scope.name}) under a condition that differs between its instances",
                "scope",
                "A rendezvous is reached by all its participants.",
            )
        call.attrs["scope"], call.operands["role"] = "role", scope
        return []
    name = scope.name
    legal = {"warp": "WG", "warpgroup": "G", "cta": "K", "cluster": "K", "grid": "K"}[name]
    if unit not in legal:
        where = "kernel level" if legal == "K" else "a warpgroup" if legal == "G" else "a warp or warpgroup"
        call.fail(
            "sync/cta-sync-divergent" if legal == "K" else "hardware/illegal-unit",
            f"sync({name}) belongs to {where}"
            + (f"; inside role {c.role.name} use sync({c.role.name})" if c.role else ""),
            "scope",
            "A CTA-wide barrier is reached by all threads.",
        )
    if (name in ("cta", "cluster", "grid") and control in ("instance",)) or (name == "cluster" and control == "cta"):
        call.fail(
            "sync/non-uniform-control",
            f"sync({name}) under control flow that is only uniform per {control}",
            "scope",
            "A rendezvous is reached by all its participants.",
        )
    call.attrs["scope"] = name
    return []


@check("fence_async")
def _fence(call: Call) -> list[Any]:
    # `global` is a keyword of the text form; below the text the space has its PTX name
    call.attrs["space"] = "global" if call.args.get("space") == "gmem" else "shared"
    return []


@check(
    "griddep_wait",
    "griddep_launch",
    "bulk_commit",
    "cp_async_commit",
    "wgmma_commit",
    "tmem_load_wait",
    "tmem_store_wait",
)
def _plain(call: Call) -> list[Any]:
    return []


@check("bulk_wait_read", "bulk_wait", "cp_async_wait", "wgmma_wait")
def _wait_group(call: Call) -> list[Any]:
    k = call.args["k"]
    most = 7 if call.decl.name == "wgmma_wait" else 31
    if not 0 <= k <= most:
        call.fail("hardware/wait-depth", f"{call.decl.name}({k}): the depth is between 0 and {most}", "k")
    call.attrs["k"] = k
    return []
