"""Profiles made by hand: a program of two roles, its machine code, and numbers that a test chooses."""

from __future__ import annotations

from typing import Any

from corpus.profiling.facts import Facts, Line
from corpus.profiling.metrics import METRICS
from lowering.sass import Instruction, Sass

TEXT = """header
producer waits
copy
math waits
product
arithmetic
around
together
"""
FACTS = Facts(
    kernel="k",
    source=tuple(TEXT.split("\n")),
    lines={
        2: Line(("wait",), "producer"), 3: Line(("tma_load",), "producer"), 4: Line(("wait",), "math"),
        5: Line(("wgmma", "wgmma_wait"), "math"), 6: Line(("elementwise",), "math"), 7: Line(("for",)), 8: Line(("sync",)),
    },
    warps={"producer": 4, "math": 8},
    bounds_us={"tensor": 40.0, "hbm": 20.0}, model_us=50.0, launch_us=3.0,
    limiters=({"line": 5, "col": 1, "what": "wgmma", "clocks_per_cta": 9.0, "share": 0.75},),
)  # fmt: skip
CODE = [(0, "S2R"), (7, "IADD3"), (2, "SYNCS.PHASECHK"), (3, "UTMALDG.2D"), (7, "BRA"), (3, "UTMALDG.2D"),
        (4, "SYNCS.PHASECHK"), (7, "IADD3"), (5, "HGMMA.64x256x16"), (6, "FADD"), (8, "UCGABAR_WAIT"), (99, "EXIT")]  # fmt: skip
SASS = Sass("", tuple(Instruction("k", 16 * n, "", name, "R0", line) for n, (line, name) in enumerate(CODE)))


def rows(*samples: int, reason: str = "long_sb") -> list[dict[str, Any]]:
    """Samples per instruction of CODE, all for one reason."""
    return [
        {"offset": 16 * n, "samples": s, "stalls": {reason: s} if s else {}, "executed": 10}
        for n, s in enumerate(samples)
    ]


def metrics(**values: float) -> dict[str, Any]:
    units = {m.name: m.unit for m in METRICS}
    return {name: {"value": value, "unit": units[name]} for name, value in values.items()}


def timeline(wait: float = 10.0, kernel_us: float = 100.0, **more: Any) -> dict[str, Any]:
    """math: `wait` us at line 4, the rest in line 5 and 20 us in line 6; the producer waits 90 % of the time."""

    def line(at: int, role: str, kind: str, ops: list[str], us: float) -> dict[str, Any]:
        return {
            "line": at,
            "end_line": at,
            "role": role,
            "kind": kind,
            "ops": ops,
            "mark": at,
            "us": us,
            "share": us / kernel_us,
        }

    product = kernel_us - wait - 20
    found = [
        line(2, "producer", "wait", ["wait"], 0.9 * kernel_us), line(3, "producer", "issue", ["tma_load"], 0.1 * kernel_us),
        line(4, "math", "wait", ["wait"], wait), line(5, "math", "compute", ["wgmma"], product),
        line(6, "math", "compute", ["elementwise"], 20.0),
    ]  # fmt: skip
    roles = [
        {"role": "producer", "instances": 1, "mean_us": kernel_us, "busy": 1.0, "covered": 0.99,
         "us": {"wait": 0.9 * kernel_us, "issue": 0.1 * kernel_us, "compute": 0.0, "store": 0.0, "idle": 0.0}},
        {"role": "math", "instances": 2, "mean_us": kernel_us, "busy": 1.0, "covered": 0.99,
         "us": {"wait": wait, "issue": 0.0, "compute": kernel_us - wait, "store": 0.0, "idle": 0.0}},
    ]  # fmt: skip
    return {
        "kernel": "k", "file": "k.cake", "grid": 132, "recorded_ctas": 132, "kernel_us": kernel_us, "plain_us": kernel_us,
        "instrumented_us": kernel_us * 1.04, "overhead": 0.04, "marks": [], "roles": roles,
        "lines": sorted(found, key=lambda x: -x["us"]), "tracks": [], "slots": 132, **more,
    }  # fmt: skip


def profile(
    time_us: float = 100.0, *, counters: dict[str, Any] | None = None, timeline: dict[str, Any] | None = None, **more: Any
) -> dict[str, Any]:  # fmt: skip
    """The JSON of `corpus.jobs.Profile`."""
    candidate = {
        "name": "candidate",
        "median_us": time_us,
        "mad_us": 0.1,
        "samples_us": [time_us + d for d in (-0.2, -0.1, 0.0, 0.1, 0.2)] * 4,
        "batch": 10,
    }
    shape = {"shape": {"M": 8}, "dtypes": {"a": "bf16"}, "mode": "warm", "verdict": "measured", "candidate": candidate,
             "conditions": {}, "floor_us": 20.0}  # fmt: skip
    return {
        "kind": "profile", "contract": "c", "contract_digest": "ct_1", "kernel": "k", "passed": True, "summary": "100 us",
        "seed": 0, "secret": "0", "device": {"name": "H200", "sms": 132, "sm_clock_mhz": 1980}, "seconds": 1.0,
        "shape": shape, "timeline": timeline or {"unavailable": "not taken"},
        "counters": counters or {"unavailable": "no ncu"}, **more,
    }  # fmt: skip
