"""From a bound program to a launchable kernel: emission, compilation, inspection, device runtime.

Importing this package needs neither CUDA nor a GPU. The names below are loaded on first use; where one is also a submodule
(`plan`), the function wins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cake_ir.facade import lazy

if TYPE_CHECKING:
    from lowering.building import Build, build, build_async
    from lowering.emission import Emitted, emit, plan
    from lowering.plan import LaunchPlan, Manifest, Promise
    from lowering.sass import disassemble

__all__ = [
    "Build",
    "Emitted",
    "LaunchPlan",
    "Manifest",
    "Promise",
    "build",
    "build_async",
    "disassemble",
    "emit",
    "plan",
]

lazy(
    __name__,
    {
        "Build": "lowering.building",
        "build": "lowering.building",
        "build_async": "lowering.building",
        "Emitted": "lowering.emission",
        "emit": "lowering.emission",
        "plan": "lowering.emission",
        "LaunchPlan": "lowering.plan",
        "Manifest": "lowering.plan",
        "Promise": "lowering.plan",
        "disassemble": "lowering.sass",
    },
)
