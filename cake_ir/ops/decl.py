"""How an op is declared: once, as data. Analyses read effects, so a rule rarely names an op.

Proxies (PTX ISA, "Proxies"): generic (ld/st, cp.async, ldmatrix, stmatrix), async (TMA, bulk, wgmma, tcgen05 reads of
shared memory), tensor (tensor memory).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Param:
    """One parameter. kind decides how the binder resolves the argument:

    view | region | memory (view or region) | barrier | frag (named accumulator, written in place) | value (VX) |
    scalar (SX) | static (compile-time int/bool) | cond (uniform bool, SX) | mask (VX bool) | layout | name (one of
    `choices`) | ranks ("cluster" or a tuple of SX) | scope (warp, warpgroup, cta, cluster, grid, a role, a named barrier) |
    frag_or_view.
    """

    name: str
    kind: str
    required: bool = True
    keyword: bool = False
    default: Any = None
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Access:
    """The op reads or writes the memory named by an operand.

    proxy: generic | async | tensor | register. deferred: the access completes later, as `OpDecl.completion` says; an
    in-order access (deferred False) is complete when the op is.
    """

    operand: str
    mode: str  # read | write | update
    proxy: str
    deferred: bool = False


@dataclass(frozen=True)
class Sync:
    """The op's synchronisation effect.

    kind: arrive | expect | wait | rendezvous (sync) | named_arrive | commit | wait_group | fence | griddep_wait |
    griddep_launch | tcommit | flag_add | flag_wait. group: bulk | cp_async | wgmma | tmem_load | tmem_store | tcgen05.
    read_only: wait_group that frees sources only.
    """

    kind: str
    operand: str = ""
    group: str = ""
    read_only: bool = False


@dataclass(frozen=True)
class OpDecl:
    """One op of the vocabulary.

    units: letters of T (thread) W (warp) G (warpgroup) K (kernel level). feature: key of `Target.has`. form: the PTX
    instruction. completion: how others learn of it: in_order | blocks | mbarrier (bytes on operand `signal`) |
    group:<name>. `check(ctx)` types the op (fills shapes, returns results); see bind.
    """

    name: str
    units: str
    params: tuple[Param, ...]
    form: str
    source: str
    doc: str
    feature: str | None = None
    accesses: tuple[Access, ...] = ()
    syncs: tuple[Sync, ...] = ()
    completion: str = "in_order"
    check: Callable[..., Any] | None = None
    family: str = ""
    collective: bool = True  # all lanes of the unit execute it together (no divergence allowed)
    examples: tuple[str, ...] = ()

    def param(self, name: str) -> Param:
        for p in self.params:
            if p.name == name:
                return p
        raise KeyError(name)
