"""Quick unjudged timing of kernel variants on a GPU, for performance work only (evidence comes from tools.gpu_session).

python -m tools.gpu_try prepare DIR SPEC.json        compile variants: [{"name", "file", "set": {}, "replace": [[old, new]], "dims": {}}]
python -m tools.gpu_try run DIR [--once NAME]        time all, interleaved; --once launches one a few times (under ncu)
"""

from __future__ import annotations

import argparse
import base64
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any


def prepare(directory: Path, spec: Path) -> int:
    from analyses import verify
    from cake_ir import bind, parse
    from lowering import build, emit, plan

    out = []
    for v in json.loads(spec.read_text()):
        text = Path(v["file"]).read_text()
        for old, new in v.get("replace", []):
            if text.count(old) < 1:
                print(f"{v['name']}: {old!r} not found")
                return 1
            text = text.replace(old, new)
        parsed = parse(text)
        assert parsed.file is not None, [d.render() for d in parsed.diagnostics]
        done = bind(parsed.file, v.get("set", {}), "sm_90a", v.get("kernel"))
        if done.bound is None:
            print(v["name"], [d.render() for d in done.diagnostics])
            return 1
        bound = done.bound
        # a kernel that hangs costs the whole session: nothing unverified runs, not even for a quick look
        report = verify(bound)
        if not report.accepted:
            print(v["name"], [d.render() for d in report.diagnostics if d.severity == "error"][:2])
            return 1
        emitted = emit(bound)
        made = build(emitted)
        if made.cubin is None or (not made.ok and not made.cubin):
            print(v["name"], made.log[-500:])
        dims = v["dims"]
        p = plan(emitted, dims, v.get("scalars", {}), 132, cubin_sha256=made.sha256)
        from cake_ir.arithmetic import compile_sx

        env: list[Any] = [0] * len(bound.scalars)
        for n, var in bound.dims.items():
            env[var.slot] = dims[n]
        tensors = {t.name: [t.dtype.name, [compile_sx(e)(env) for e in t.extents]] for t in bound.tensors}
        out.append(
            {
                "name": v["name"],
                "cubin": base64.b64encode(made.cubin).decode(),
                "plan": p.to_json(),
                "tensors": tensors,
                "flop": v.get("flop", 0),
                "bytes": v.get("bytes", 0),
            }
        )
        r = made.report().get("resources", {})
        print(
            v["name"],
            r.get("registers"),
            r.get("spill_store_bytes"),
            [line for line in made.log.splitlines() if "C75" in line][:2],
        )
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "variants.json").write_text(json.dumps(out))
    return 0


def run(directory: Path, once: str | None, rounds: int) -> int:
    import torch

    from lowering.plan import LaunchPlan
    from lowering.runtime.device import Device
    from lowering.runtime.host import prepare as prepare_launch

    torch.cuda.init()
    device = Device(0)
    kinds = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32, "i32": torch.int32}
    ready, store = [], {}
    for v in json.loads((directory / "variants.json").read_text()):
        if once and v["name"] != once:
            continue
        pointers = {}
        for n, (dtype, extents) in v["tensors"].items():
            key = (n, dtype, tuple(extents))
            if key not in store:
                store[key] = (
                    torch.randn(extents, device="cuda").to(kinds[dtype])
                    if dtype != "i32"
                    else torch.zeros(extents, dtype=torch.int32, device="cuda")
                )
            pointers[n] = store[key].data_ptr()
        ready.append(
            (v, prepare_launch(device, base64.b64decode(v["cubin"]), LaunchPlan.from_json(v["plan"]), pointers))
        )
    stream = torch.cuda.current_stream().cuda_stream
    if once:
        for _, launch in ready:
            for _ in range(3):
                launch.launch(stream)
        torch.cuda.synchronize()
        return 0
    times: dict[str, list[float]] = {}

    def timed(name: str, call: Any, n: int) -> None:
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        for _ in range(n):
            call()
        b.record()
        b.synchronize()
        times.setdefault(name, []).append(a.elapsed_time(b) * 1000 / n)

    mats = [s for k, s in store.items() if k[0] in ("a", "b")]
    for _ in range(rounds):
        for v, launch in ready:
            launch.launch(stream)
            timed(v["name"], lambda launch=launch: launch.launch(stream), 5)
            time.sleep(0.03)
        if len(mats) == 2:
            torch.matmul(mats[0], mats[1].T)
            timed("torch_matmul", lambda: torch.matmul(mats[0], mats[1].T), 5)
            time.sleep(0.03)
    for v, _ in [*ready, ({"name": "torch_matmul", "flop": ready[0][0]["flop"], "bytes": 0}, None)]:
        if v["name"] in times:
            us = statistics.median(times[v["name"]])
            rate = f"{v['flop'] / us / 1e6:7.1f} TFLOP/s {v.get('bytes', 0) / us / 1e3:7.0f} GB/s"
            print(f"{v['name']:30s} {us:9.1f} us {rate}  min {min(times[v['name']]):.1f}")
    return 0


def main() -> int:
    p = argparse.ArgumentParser(prog="tools.gpu_try")
    p.add_argument("step", choices=("prepare", "run"))
    p.add_argument("dir", type=Path)
    p.add_argument("spec", type=Path, nargs="?")
    p.add_argument("--once")
    p.add_argument("--rounds", type=int, default=7)
    a = p.parse_args()
    return prepare(a.dir, a.spec) if a.step == "prepare" else run(a.dir, a.once, a.rounds)


if __name__ == "__main__":
    sys.exit(main())
