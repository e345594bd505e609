"""A machine with round numbers, on which times of small programs are computed by hand. 1 GHz: a thousand clocks are a microsecond."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from analyses.cost.estimate import L2, Estimate, estimate_on
from analyses.cost.machine import ASSUMED, Machine
from analyses.cost.work import OVERHEAD
from cake_ir import bind, parse, targets
from cake_ir import bound as B

LATENCY = {
    **dict.fromkeys(ASSUMED, 0.0), "load": 100, "load_hbm": 300, "l1": 40, "smem_load": 10, "tma": 400, "tma_hbm": 700, "hop": 50,
    "far": 120, "passed": 8, "named": 20, "cluster": 200, "fence": 5, "wgmma": 16, "mma": 30, "launch_us": 1.0, "dependent_us": 0.5,
}  # fmt: skip
TOY = replace(
    Machine.of(targets.get("sm_90a"), None), name="toy", sms=4, clock_hz=1e9, clock_some_hz=1e9, clock_tensor_hz=1e9, hbm_read=1e15,
    hbm_write=1e15, l2=1e15, l2_write=1e15, port=1e6, port_alone=1e6, write_alone=1e6, smem=1e6, far=1e6, far_pieces=1e6,
    fma=128, alu=64, special=16,
    shuffle=32, latency=LATENCY, wgmma={}, mma_sync=0.5, flop={16: 4096, 8: 8192, 32: 2048}, alu_slots=1.0, l2_keeps=(1e12, 2e12),
    drag=(0.0, 0.0, 0.0), gpcs=1, cluster_sms={}, calibrated=False, source="toy",
)  # fmt: skip
"""Memory is endless and nothing starts late, so that a test pays what it names."""
WAIT = 6 * OVERHEAD
"""Issue slots of a barrier op: 6 instructions of a warp on its scheduler."""


def latency(**changes: float) -> Mapping[str, float]:
    """The toy's latencies with some changed."""
    return {**LATENCY, **changes}


def toy(**changes: Any) -> Machine:
    """The toy with other rates."""
    return replace(TOY, **changes)


def bound_of(text: str, target: str | None = None, **bindings: Any) -> B.BoundKernel:
    """A text bound; it must parse and bind."""
    parsed = parse(text)
    assert parsed.file is not None, [d.render() for d in parsed.diagnostics]
    done = bind(parsed.file, bindings, target)
    assert done.bound is not None, [d.render() for d in done.diagnostics]
    return done.bound


def run(
    text: str | B.BoundKernel, shape: Mapping[str, int], machine: Machine = TOY, *, l2: L2 = "cold", without: str = "",
    explain: bool = False, **bindings: Any,
) -> Estimate:  # fmt: skip
    """The estimate of a text."""
    bound = bound_of(text, **bindings) if isinstance(text, str) else text
    left_out = frozenset((without,)) if without else frozenset()
    return estimate_on(bound, dict(shape), machine, l2=l2, without=left_out, explain=explain)


def clocks(
    text: str | B.BoundKernel, shape: Mapping[str, int], machine: Machine = TOY, *, l2: L2 = "cold", without: str = "",
    **bindings: Any,
) -> float:  # fmt: skip
    """Clocks of a text from the start of its first CTA to the end of its last."""
    found = run(text, shape, machine, l2=l2, without=without, **bindings)
    return (found.time_us - found.launch_us) * 1000


def per_trip(
    text: str, shape: Mapping[str, int], machine: Machine = TOY, few: int = 40, many: int = 104, *, l2: L2 = "cold",
    **bindings: Any,
) -> float:  # fmt: skip
    """Clocks of one iteration of a loop of `trips`."""
    bound = bound_of(text, **bindings)
    a, b = (clocks(bound, {**shape, "trips": n}, machine, l2=l2) for n in (few, many))
    return (b - a) / (many - few)
