"""From a bound program to a launchable kernel: emission, compilation, inspection, device runtime.

Importing this package needs neither CUDA nor a GPU. The functions of the facade are bound here eagerly because some
share their name with a submodule (`plan`), and the function must win.
"""

from __future__ import annotations

from lowering.building import Build, build, build_async
from lowering.emission import Emitted, emit, plan
from lowering.plan import LaunchPlan, Manifest, Promise
from lowering.sass import disassemble

__all__ = ["Build", "Emitted", "LaunchPlan", "Manifest", "Promise", "build", "build_async", "disassemble", "emit", "plan"]
