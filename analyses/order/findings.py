"""The rules that the order reading decides: one table of stable ids, each with the contract it stands for."""

from __future__ import annotations

from typing import Final

# ---- sync: progress and barrier protocol
DEADLOCK: Final = "sync/deadlock"
PHASE_OVERRUN: Final = "sync/phase-overrun"
PHASE_DRIFT: Final = "sync/phase-drift"
PHASE_MISSED: Final = "sync/phase-missed"
WAIT_STRAGGLER: Final = "sync/wait-not-converged"
WAIT_AHEAD: Final = "sync/wait-ahead"
OVER_ARRIVAL: Final = "sync/over-arrival"
NEGATIVE_USE: Final = "sync/negative-use"
NAMED_OVERRUN: Final = "sync/named-overrun"
NAMED_OPEN: Final = "sync/named-left-open"
RELEASE_MISSES_LANES: Final = "sync/release-misses-lanes"
CLUSTER_EXIT: Final = "sync/cluster-exit"
BULK_AT_EXIT: Final = "sync/bulk-read-at-exit"
COPY_UNAWAITED: Final = "sync/copy-unawaited"
GRIDDEP: Final = "sync/griddep-access-before-wait"

# ---- data: accesses of memory and registers
FENCE_WRITE: Final = "data/proxy-fence-missing-write"
FENCE_RELEASE: Final = "data/proxy-fence-missing-release"
READ_BEFORE_ARRIVAL: Final = "data/read-before-arrival"
WRITE_IN_FLIGHT: Final = "data/write-into-flight"
SLOT_REUSE: Final = "data/slot-reuse-without-wait"
OVERWRITTEN: Final = "data/overwritten-while-read"
RELEASED_EARLY: Final = "data/released-before-read"
WGMMA_RELEASE: Final = "data/wgmma-release-before-wait"
ACC_READ_EARLY: Final = "data/accumulator-read-early"
BULK_DEPTH: Final = "data/bulk-wait-depth"
GROUP_OWNER: Final = "data/group-owner"
CP_ASYNC_COUNT: Final = "data/cp-async-wait-count"
TMEM_LOAD_WAIT: Final = "data/tmem-load-wait"
TMEM_STORE_WAIT: Final = "data/tmem-store-wait"
COMMIT_MISSING: Final = "data/tcgen05-commit-missing"
UNSYNCED_READ: Final = "data/unsynchronised-read"
UNSYNCED_WRITE: Final = "data/unsynchronised-write"
LANE_RACE: Final = "data/lane-race"
UNINIT_MEMORY: Final = "data/uninitialised-memory"
UNINIT_REGISTER: Final = "data/uninitialised-register"
UNINIT_ACC: Final = "data/uninitialised-accumulator"
OVERLAY_READ: Final = "data/overlay-stale-read"
FENCE_GLOBAL: Final = "data/proxy-fence-global"
GLOBAL_RACE: Final = "data/global-race"
BULK_WRITE: Final = "data/bulk-write-unfinished"

CONTRACTS: Final[dict[str, str]] = {
    DEADLOCK: "From every reachable state some agent can step until all have finished.",
    PHASE_OVERRUN: "An arrival for use n reaches a barrier slot only after use n - stages has completed there.",
    PHASE_DRIFT: "Use numbers that restart agree with the phase the barrier slot is really in.",
    PHASE_MISSED: "A barrier slot does not complete use n + stages before every waiter for use n has passed.",
    WAIT_STRAGGLER: "Lanes that wait together have all passed before one of them lets the barrier complete again.",
    WAIT_AHEAD: (
        "Whoever waits for use n knows that use n - stages has completed; else the parity test passes too early."
    ),
    OVER_ARRIVAL: "A use of a barrier gets exactly its arrival count.",
    NEGATIVE_USE: "Only waits may name a use number below zero.",
    NAMED_OVERRUN: "A unit enters round n + 1 of a named barrier only after round n has completed.",
    NAMED_OPEN: "Every round of a named barrier that was begun is completed.",
    RELEASE_MISSES_LANES: "An arrival by one thread releases what its unit did only behind a sync of that unit.",
    CLUSTER_EXIT: "Everything that reaches into a CTA's shared memory or barriers happens before that CTA exits.",
    BULK_AT_EXIT: "Bulk stores have read their shared source before the CTA exits.",
    COPY_UNAWAITED: "Every copy into a CTA is waited for in that CTA before it exits.",
    GRIDDEP: "A role touches memory of predecessor grids only after its own griddep_wait.",
    FENCE_WRITE: (
        "Data written by stores reach the async proxy only through a fence_async of every writer, before the release."
    ),
    FENCE_RELEASE: "Plain readers of a stage execute fence_async before they release it to a copy that overwrites it.",
    READ_BEFORE_ARRIVAL: "Data that a copy brings are read only after a wait on its barrier.",
    WRITE_IN_FLIGHT: "Memory that a copy is still writing is not written by others.",
    SLOT_REUSE: "A ring slot is refilled only after a wait for the release of its previous use.",
    OVERWRITTEN: "Memory is overwritten only after its readers have released it.",
    RELEASED_EARLY: "A stage is released after its last read, not before.",
    WGMMA_RELEASE: "Operands of a wgmma are released only after the wgmma_wait that covers it.",
    ACC_READ_EARLY: "Registers of a pending wgmma are neither read nor written before the wgmma_wait that covers it.",
    BULK_DEPTH: "The source of a bulk store is overwritten only after a bulk wait deep enough to cover its group.",
    GROUP_OWNER: "A bulk group is waited for by the thread that issued it.",
    CP_ASYNC_COUNT: "cp.async data are used only after a cp_async_wait deep enough to cover their group.",
    TMEM_LOAD_WAIT: "A tmem_load is complete, and its columns may be released, only after tmem_load_wait.",
    TMEM_STORE_WAIT: "A tmem_store is complete only after tmem_store_wait.",
    COMMIT_MISSING: (
        "What tcgen05 products read or write is touched by others only after "
        "a wait on a barrier of a later tcgen05_commit."
    ),
    UNSYNCED_READ: "A read is ordered after the write of what it reads by a sync or an arrive and wait.",
    UNSYNCED_WRITE: "Two writes of the same memory are ordered by a sync or an arrive and wait.",
    LANE_RACE: "Lanes of a unit that exchange data through memory have a sync between write and read.",
    UNINIT_MEMORY: "Shared and tensor memory are written before they are read.",
    UNINIT_REGISTER: "A fragment without fill is written before it is read.",
    UNINIT_ACC: "The first product into an accumulator overwrites it (init) or finds it filled.",
    OVERLAY_READ: "Storage shared by two buffers is read through the one that was written last.",
    FENCE_GLOBAL: (
        "Between plain accesses of global memory (a polled flag, a store) and a copy of what they announce or wrote stands a "
        "fence_async(space=gmem)."
    ),
    GLOBAL_RACE: "Accesses of one element of an InOut tensor, one of them a write, are ordered by a sync or an arrive and wait.",
    BULK_WRITE: "What a bulk or tensor store writes is touched again only after a bulk_wait of its thread.",
}
