"""The hardware counters a profile reads: each named once, with the metric of Nsight Compute behind it, its unit and meaning.

Percentages are of the peak that the unit can sustain over the whole kernel (elapsed) unless the meaning says otherwise.
The metric names are Nsight Compute's (Kernel Profiling Guide, "Metrics Reference"); checked with 2025.3 on an H200. A
metric that a chip or a version does not have is left out of the result; the first name found counts.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """`name` in profiles; `sources` are Nsight Compute's names, best first."""

    name: str
    unit: str
    meaning: str
    sources: tuple[str, ...]


_PCT = ".avg.pct_of_peak_sustained_elapsed"

METRICS: tuple[Metric, ...] = (
    Metric("duration", "us", "the profiled launch, at the clocks it had then", ("gpu__time_duration.avg", "gpu__time_duration.sum")),
    Metric("sm_clock", "GHz", "SM clock during the profiled launch",
           ("gpc__cycles_elapsed.avg.per_second", "smsp__cycles_elapsed.avg.per_second", "sm__cycles_elapsed.avg.per_second")),
    Metric("elapsed_cycles", "cycle", "clocks of the launch", ("gpc__cycles_elapsed.avg", "gpc__cycles_elapsed.max")),
    Metric("active_cycles", "cycle", "clocks in which an SM had a CTA, mean over SMs", ("sm__cycles_active.avg",)),
    Metric("tensor", "%", "tensor pipe busy", (f"sm__pipe_tensor_cycles_active{_PCT}", f"sm__inst_executed_pipe_tensor{_PCT}")),
    Metric("alu", "%", "integer and logic pipe busy", (f"sm__pipe_alu_cycles_active{_PCT}", f"sm__inst_executed_pipe_alu{_PCT}")),
    Metric("fma", "%", "float32 multiply-add pipe busy", (f"sm__pipe_fma_cycles_active{_PCT}", f"sm__inst_executed_pipe_fma{_PCT}")),
    Metric("xu", "%", "transcendental and conversion pipe busy", (f"sm__inst_executed_pipe_xu{_PCT}",)),
    Metric("lsu", "%", "load/store pipe busy", (f"sm__inst_executed_pipe_lsu{_PCT}",)),
    Metric("issue", "%", "issue slots used", (f"sm__issue_active{_PCT}", f"sm__inst_issued{_PCT}")),
    Metric("dram", "%", "device memory busy", (f"gpu__dram_throughput{_PCT}", f"dram__throughput{_PCT}")),
    Metric("dram_rate", "GB/s", "device memory traffic", ("dram__bytes.sum.per_second",)),
    Metric("l2", "%", "L2 cache busy", (f"lts__throughput{_PCT}",)),
    Metric("l2_hit", "%", "sectors found in the L2 cache", ("lts__t_sector_hit_rate.pct",)),
    Metric("l1_hit", "%", "sectors found in the L1 cache", ("l1tex__t_sector_hit_rate.pct",)),
    Metric("smem", "%", "shared-memory data pipe busy", (f"l1tex__data_pipe_lsu_wavefronts{_PCT}",)),
    Metric("smem_wavefronts", "", "shared-memory accesses, in conflict-free steps and more", ("memory_l1_wavefronts_shared",)),
    Metric("smem_excessive", "", "of these, steps that bank conflicts added", ("derived__memory_l1_wavefronts_shared_excessive",)),
    Metric("occupancy", "%", "warps resident while an SM is active, of the most it can hold",
           ("sm__warps_active.avg.pct_of_peak_sustained_active",)),
    Metric("occupancy_limit", "%", "the same as the launch allows it", ("sm__maximum_warps_per_active_cycle_pct",)),
    Metric("eligible_warps", "warp", "warps ready to issue per scheduler and clock", ("smsp__warps_eligible.avg.per_cycle_active",)),
    Metric("waves", "", "CTAs over those that fit at once", ("launch__waves_per_multiprocessor",)),
    Metric("ctas_by_registers", "CTA", "CTAs per SM that registers allow", ("launch__occupancy_limit_registers",)),
    Metric("ctas_by_smem", "CTA", "CTAs per SM that shared memory allows", ("launch__occupancy_limit_shared_mem",)),
    Metric("ctas_by_warps", "CTA", "CTAs per SM that the warp limit allows", ("launch__occupancy_limit_warps",)),
    Metric("registers", "", "registers per thread", ("launch__registers_per_thread",)),
    Metric("instructions", "", "warp instructions executed", ("inst_executed", "smsp__inst_executed.sum")),
    Metric("spill_instructions", "", "of these, for spilled registers", ("sass__inst_executed_register_spilling",)),
)  # fmt: skip

SECTIONS = (
    "SpeedOfLight", "LaunchStats", "Occupancy", "ComputeWorkloadAnalysis", "MemoryWorkloadAnalysis", "SchedulerStats",
    "SourceCounters",
)  # fmt: skip
"""Nsight Compute's sections that hold these metrics: they exist for every chip, while single names come and go."""

BRIEF = ("tensor", "alu", "fma", "issue", "dram", "l2", "smem", "occupancy", "eligible_warps", "sm_clock")
"""What a concise answer shows."""

STALLS: dict[str, str] = {
    "barrier": "other warps at a CTA, named or cluster barrier",
    "branch_resolving": "a branch target",
    "dispatch": "the dispatch unit",
    "drain": "stores to drain at exit",
    "imc": "an immediate-constant cache miss",
    "lg": "a full load/store queue of global memory",
    "long_sb": "a memory or barrier result (long scoreboard)",
    "math": "a busy math pipe",
    "membar": "a memory fence",
    "mio": "a full memory-I/O queue",
    "misc": "other causes",
    "no_inst": "an instruction fetch",
    "not_selected": "another warp that was issued instead",
    "selected": "nothing: it issued",
    "short_sb": "a shared-memory or special-function result (short scoreboard)",
    "sleep": "nanosleep",
    "tex": "a full texture queue",
    "wait": "a fixed latency",
    "warpgroup_depbar": "the warpgroup's products to end",
    "warpgroup_arrive": "the tensor core to take the warpgroup's product",
    "unnamed": "a cause that the profiler does not name",
}
"""What a sampled warp stood for, by the reason's name in a profile (Kernel Profiling Guide, "Warp Stall Reasons").
warpgroup_depbar is ours: see `corpus.profiling.ncu.source_page`."""
