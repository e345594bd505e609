"""Evidence to render: a profile of the form that docs/measuring.md fixes, and hostile names for every field."""

from __future__ import annotations

import random
from typing import Any

from tests.server.conftest import ROOT

GEMM = (ROOT / "corpus" / "kernels" / "gemm_sm90.cake").read_text()
HOSTILE = (
    '<script>window.hit=1</script><img src=x onerror="window.hit=1">\'"&{{7*7}}</title></style>]]>\x00\ud800\u202e'
)
"""Closes every context a name may stand in, and holds what XML and UTF-8 cannot."""


def line_of(text: str, source: str = GEMM) -> int:
    """The first line of the source that holds the text."""
    return next(i for i, line in enumerate(source.split("\n"), 1) if text in line)


def profile(*, ctas: int = 8, steps: int = 24, slow: float = 1.0, seed: int = 1) -> dict[str, Any]:
    """A profile of gemm_sm90: per CTA a producer and two math instances, `steps` rounds of a ring."""
    draw = random.Random(seed)
    marks = [
        _mark(1, "wait", "producer", "wait(free[n - STAGES])"), _mark(2, "issue", "producer", "tma_load(a_s[n]"),
        _mark(3, "wait", "math", "wait(full[n])"), _mark(4, "compute", "math", "wgmma(acc, a_s[n]"),
        _mark(5, "wait", "math", "wgmma_wait(1)"), _mark(6, "store", "math", "stmatrix(d_s[e]"),
    ]  # fmt: skip
    tracks = []
    for cta in range(ctas):
        at = 0.4 * draw.random()
        spans: list[list[float]] = []
        start = at
        for _ in range(steps):
            for mark, mean in ((1, 0.55 * slow), (2, 0.25)):
                at = _span(spans, mark, at, mean, draw)
        tracks.append(_track(cta, "producer", 0, start, at, spans))
        for instance in (0, 1):
            at, spans = start + 0.1, []
            for _ in range(steps):
                for mark, mean in ((3, 0.12 * slow), (4, 0.58), (5, 0.1)):
                    at = _span(spans, mark, at, mean, draw)
            at = _span(spans, 6, at, 0.8, draw)
            tracks.append(_track(cta, "math", instance, start + 0.1, at, spans))
    whole = max(t["end_us"] for t in tracks)
    kinds = {m["id"]: m["kind"] for m in marks}
    roles, lines = [], []
    for role, instances in (("producer", 1), ("math", 2)):
        mine = [t for t in tracks if t["role"] == role]
        us = dict.fromkeys(("wait", "issue", "compute", "store"), 0.0)
        for m in marks:
            if m["role"] != role:
                continue
            total = sum(b - a for t in mine for mark, a, b in t["spans"] if mark == m["id"]) / len(mine)
            us[kinds[m["id"]]] += total
            lines.append(
                {
                    "line": m["line"],
                    "role": role,
                    "kind": m["kind"],
                    "ops": m["ops"],
                    "us": total,
                    "share": total / whole,
                }
            )
        covered = sum(us.values()) / whole
        roles.append({"role": role, "instances": instances, "mean_us": sum(us.values()), "covered": covered, "us": us})
    lines.sort(key=lambda e: -e["us"])
    first = lines[0]
    return {
        "kind": "profile", "contract": "gemm_bf16", "contract_digest": "", "kernel": "gemm_sm90", "passed": True, "seed": 7,
        "secret": "00112233445566778899aabbccddeeff", "device": {"name": "NVIDIA H200", "driver": "13.0"}, "seconds": 1.0,
        "shape": {
            "shape": {"M": 512, "N": 512, "K": 1536}, "mode": "warm", "verdict": "measured",
            "candidate": {"name": "candidate", "median_us": whole * 0.97, "mad_us": 0.1, "samples_us": [whole * 0.97] * 5, "batch": 4},
        },
        "timeline": {
            "kernel": "gemm_sm90", "file": "gemm_sm90.cake", "grid": 8, "recorded_ctas": ctas, "kernel_us": whole,
            "plain_us": whole * 0.97, "instrumented_us": whole, "overhead": 1 / 0.97 - 1, "marks": marks, "roles": roles,
            "lines": lines, "tracks": tracks,
        },
        "counters": {"metrics": {"tensor_busy": {"value": 71.25, "unit": "%"}, "dram_bytes": {"value": 1.5e9, "unit": "byte"}}},
        "summary": {
            "sentence": "bound by tensor", "bound": "tensor", "why": "busy", "basis": "timeline and counters",
            "limiters": [{
                "line": first["line"], "op": first["ops"][0], "role": first["role"], "what": GEMM.split("\n")[first["line"] - 1].strip(),
                "us": first["us"], "share": 0.7, "evidence": "71.2 % tensor pipe busy",
            }],
            "by_line": [
                {"line": line_of("wgmma(acc, a_s[n]"), "role": "math", "samples": 420, "stalls": {"math pipe": 400, "wait": 20}},
                {"line": line_of("wait(full[n])"), "role": "math", "samples": 60, "stalls": {"long scoreboard": 60}},
            ],
        },
    }  # fmt: skip


def _mark(number: int, kind: str, role: str, text: str) -> dict[str, Any]:
    line = line_of(text)
    return {"id": number, "kind": kind, "role": role, "line": line, "end_line": line, "ops": [text.split("(")[0]]}


def _span(spans: list[list[float]], mark: int, at: float, mean: float, draw: random.Random) -> float:
    end = at + mean * (0.8 + 0.4 * draw.random())
    spans.append([mark, at, end])
    return end


def _track(cta: int, role: str, instance: int, start: float, end: float, spans: list[list[float]]) -> dict[str, Any]:
    return {
        "cta": cta, "sm": 2 * cta, "role": role, "instance": instance, "start_us": start, "end_us": end, "spans": spans, "dropped": 0,
    }  # fmt: skip


def bench(kernel: str, shapes: list[dict[str, Any]], *, device: str = "NVIDIA H200") -> dict[str, Any]:
    """A bench record (`corpus.jobs.Bench` as JSON)."""
    return {
        "kind": "bench", "contract": "gemm_bf16", "contract_digest": "", "kernel": kernel, "passed": True, "summary": "", "seed": 3,
        "secret": "feedfacefeedfacefeedfacefeedface", "device": {"name": device, "driver": "13.0"}, "shapes": shapes,
        "rule": "by intervals", "seconds": 1.0,
    }  # fmt: skip


def shape(
    m: int, verdict: str, ratio: float | None, *, mode: str = "warm", name: str = "torch_matmul", us: float = 100.0
) -> dict[str, Any]:
    """One timed shape (`corpus.jobs.BenchShape` as JSON) beside one baseline and a yardstick, or without any."""
    draw = random.Random(m)

    def timing(who: str, median: float) -> dict[str, Any]:
        return {
            "name": who, "median_us": median, "mad_us": 0.1, "batch": 8, "versions": {"torch": "2.11.0"},
            "samples_us": [median * (1 + 0.004 * draw.gauss(0, 1)) for _ in range(21)],
        }  # fmt: skip

    baselines = []
    if ratio is not None:
        bounds = {"ratio": ratio, "ratio_low": ratio * 0.995, "ratio_high": ratio * 1.005}
        baselines = [
            {**timing(name, us * ratio), **bounds, "comparison": verdict, "computes": True, "verdict": "passed"},
            {**timing("device_copy", us / 2), "ratio": 0.5, "ratio_low": 0.49, "ratio_high": 0.51, "comparison": "slower",
             "computes": False, "verdict": "yardstick"},
        ]  # fmt: skip
    return {
        "shape": {"M": m, "N": 512, "K": 512}, "dtypes": {}, "mode": mode, "method": "graph", "verdict": verdict,
        "message": "" if ratio is not None else "the outputs are wrong after timing", "baseline": name if ratio is not None else None,
        "candidate": timing("candidate", us), "baselines": baselines, "unavailable": {}, "floor_us": us / 2,
        "flops": 2.0 * m * 512 * 512, "bytes": 2.0 * (m * 512 * 2 + 512 * 512),
        "checks": [{"message": "before timing: fine", "verdict": "passed"}],
        "conditions": {"telemetry": {"sm_mhz_min": 1965, "sm_mhz_max": 1980, "power_w_max": 430.5, "power_limit_w": 700,
                                     "temperature_c_max": 44, "reasons": ["power cap"], "other_processes": 0}, "notes": []},
    }  # fmt: skip
