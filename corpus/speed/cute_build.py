"""Compile FlashLib's CuTe DSL assignment kernels ahead of time, every configuration that its autotuner would try.

    PYTHON corpus/speed/cute_build.py OUT N,C,D [N,C,D ...]

PYTHON needs nvidia-cutlass-dsl (4.4 to 4.6) and flashlib, neither torch nor a GPU: the compiler is 90 MB, what it makes of a
shape some 30 KB. OUT gets `cute.so` (host code and cubins; loads beside any CUDA runtime 12.5 or newer) and `cute.json` with
the symbols. Needs gcc. Imports nothing of Cake: it runs in the peer's environment.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

TILES = ((64, 64), (64, 128), (64, 256), (128, 64), (128, 128), (128, 256))
"""flashlib.primitives.kmeans.cutedsl.assign._ALL_TILES; each without and with a producer warpgroup."""

SMEM = 232448
"""Opt-in shared memory of a block on sm_90 (CUDA programming guide, technical specifications)."""


def fits(rows: int, columns: int, width: int) -> bool:
    """`_smem_fits` of the same module: the points, one stage of centroids, barriers."""
    return (rows + columns) * width * 2 + 1024 <= SMEM


def kernel_class() -> Any:
    """FlashLib's kernel, loaded from its file: the package around it needs torch."""
    found = importlib.util.find_spec("flashlib")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("flashlib is not installed in this Python")
    file = Path(found.submodule_search_locations[0]) / "primitives" / "kmeans" / "cutedsl" / "assign_kernel.py"
    spec = importlib.util.spec_from_file_location("assign_kernel", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.HopperFlashKmeansAssign


def build(out: Path, shapes: list[tuple[int, int, int]]) -> dict[str, Any]:
    """Compile and link; returns the manifest."""
    os.environ["CUTE_DSL_ARCH"] = "sm_90a"
    import cuda.bindings.driver as driver
    import cutlass
    from cutlass import cute
    from cutlass.cute.runtime import make_fake_compact_tensor as fake

    made: list[dict[str, Any]] = []
    refused: list[dict[str, Any]] = []
    kernel = kernel_class()
    with tempfile.TemporaryDirectory() as scratch:
        for n, c, d in shapes:
            arguments = (
                fake(cutlass.BFloat16, (n, d), stride_order=(1, 0)), fake(cutlass.BFloat16, (c, d), stride_order=(1, 0)),
                fake(cutlass.Float32, (c,), stride_order=(0,)), fake(cutlass.Int32, (n,), stride_order=(0,)),
            )  # fmt: skip
            for rows, columns in TILES:
                for producer in (False, True):
                    if not fits(rows, columns, d):
                        continue
                    what = {"N": n, "C": c, "D": d, "BM": rows, "BN": columns, "use_ws": producer}
                    name = f"cute_{n}_{c}_{d}_{rows}_{columns}_{int(producer)}"
                    made_of = kernel(
                        acc_dtype=cutlass.Float32, m_block_size=rows, n_block_size=columns, use_ws=producer
                    )
                    try:
                        done = cute.compile(made_of, *arguments, driver.CUstream(0))
                    except Exception as exc:  # the autotuner passes over what does not compile: so do we, and say so
                        refused.append({**what, "why": str(exc).splitlines()[0][:200]})
                        continue
                    done.export_to_c(scratch, name, function_prefix=name)
                    header = (Path(scratch) / f"{name}.h").read_text(encoding="utf-8")
                    entry = re.search(r"void (_mlir_\w*_mlir_ciface_\w+)\(void \*\*args", header)
                    assert entry is not None, header
                    made.append({**what, "symbol": entry[1], "prefix": f"_mlir_{name}"})
                    print(name, flush=True)
        library = out / "cute.so"
        link(sorted(Path(scratch).glob("*.o")), library)
    manifest = {
        "library": library.name, "sha256": hashlib.sha256(library.read_bytes()).hexdigest(), "kernels": made, "refused": refused,
        "versions": {"nvidia-cutlass-dsl": version("nvidia-cutlass-dsl"), "flashlib": version("flashlib")},
    }  # fmt: skip
    (out / "cute.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    return manifest


def link(objects: list[Path], library: Path) -> None:
    """One shared library of the objects and the DSL's runtime shims; the CUDA runtime is found when it is loaded."""
    import nvidia_cutlass_dsl

    root = Path(next(iter(nvidia_cutlass_dsl.__path__)))
    shims = sorted(root.glob("**/libcuda_dialect_runtime_static.a"))
    compiler = shutil.which("gcc")
    if not shims or compiler is None:
        raise SystemExit("libcuda_dialect_runtime_static.a of nvidia-cutlass-dsl and gcc are needed to link")
    subprocess.run(
        [compiler, "-shared", "-o", str(library), *map(str, objects), str(shims[-1])], check=True, timeout=120
    )


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    wanted = [tuple(int(v) for v in text.split(",")) for text in sys.argv[2:]]
    if not wanted or any(len(s) != 3 for s in wanted):
        raise SystemExit("usage: cute_build.py OUT N,C,D [N,C,D ...]")
    result = build(target, [(s[0], s[1], s[2]) for s in wanted])
    print(
        f"{len(result['kernels'])} kernels, {len(result['refused'])} refused, {(target / 'cute.so').stat().st_size} bytes"
    )
