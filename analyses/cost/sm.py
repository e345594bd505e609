"""An SM as it is simulated: what it gets and what things cost on it, and what a run says."""

from __future__ import annotations

from dataclasses import dataclass, field

from analyses.cost.code import Code


@dataclass(frozen=True)
class Rates:
    """What the simulated SM gets of what all SMs share. Bytes per clock: port, l2 (what no other SM of the GPC asks for at that time),
    l2_write, hbm, hbm_write; latencies in clocks; per site: the parts of its bytes that count against L2 and against device memory.
    crowd_l2, crowd_hbm: clocks that a read waits longer where half of the rate is used (`simulate._Simulation._read`)."""

    port: float
    l2: float
    l2_write: float
    hbm: float
    hbm_write: float
    l1: float
    latency_l2: float
    latency_hbm: float
    copy_l2: float
    copy_hbm: float
    shares: dict[int, float]
    misses: dict[int, float]
    late: dict[int, float]
    near: dict[int, float]
    latency_l1: float
    crowd_l2: float
    crowd_hbm: float

    def load_latency(self, site: int) -> float:
        """Clocks until a load of a site arrives, queues aside."""
        near = self.near.get(site, 0.0)
        far = self.latency_l2 + self.late.get(site, 0.0) * (self.latency_hbm - self.latency_l2)
        return near * self.latency_l1 + (1 - near) * far

    def copy_latency(self, site: int) -> float:
        """Clocks until a bulk copy of a site has arrived, queues aside."""
        return self.copy_l2 + self.late.get(site, 0.0) * (self.copy_hbm - self.copy_l2)


@dataclass(frozen=True)
class Costs:
    """Fixed times in clocks and the law of interference, of a machine, with terms taken out."""

    passed: float
    hop: float
    far: float
    named: float
    cluster: float
    smem_load: float
    wgmma: float
    mma: float
    local: float
    turnaround: float
    gap: float
    free: float
    drag: float
    pipes: bool = True
    smem: bool = True
    tensor: bool = True
    queues: bool = True


@dataclass
class Log:
    """Every event of a run, for the critical path: agent, code, when the agent came to it and left it, how often it stands for itself,
    the event that it waited for (-1: its own agent's one before), the event before of that agent."""

    agent: list[int] = field(default_factory=list)
    code: list[Code] = field(default_factory=list)
    begin: list[float] = field(default_factory=list)
    end: list[float] = field(default_factory=list)
    mult: list[float] = field(default_factory=list)
    cause: list[int] = field(default_factory=list)
    before: list[int] = field(default_factory=list)


@dataclass
class Outcome:
    """clocks: from the start of the first CTA to the end of the last; first: to the end of the first; busy: clocks that each server of
    the first SM worked; stalls: clocks that agents waited, by what for; log, last: its events and the one that ended last; names: role
    and instance of every agent."""

    clocks: float
    first: float
    busy: dict[str, float]
    stalls: dict[str, float]
    log: Log | None = None
    last: int = -1
    names: tuple[tuple[str, int], ...] = ()
