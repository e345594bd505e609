"""Baselines: real libraries that a kernel is timed against, called the fastest way their public interface allows.

A baseline gets torch views of device memory, does everything that may be done once (norms, configuration, compilation)
in `make`, and returns a `Runner` whose `run` only launches. Outputs are preallocated where the library accepts them.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Protocol

Views = Mapping[str, Any]
"""torch tensors by contract tensor name."""


class Runner(Protocol):
    """One prepared baseline: `run` launches on torch's current stream, `outputs` are the tensors it last wrote."""

    def run(self) -> None:
        """Launch once."""
        ...

    def outputs(self) -> Views:
        """What the last run wrote."""
        ...


@dataclass
class Plain:
    """A runner around a function; `result` names the output when the library allocates it and returns it."""

    call: Callable[[], Any]
    views: Views
    result: str | None = None
    last: Any = None

    def run(self) -> None:
        """Launch once."""
        self.last = self.call()

    def outputs(self) -> Views:
        """The preallocated outputs, or the returned one."""
        return {**self.views, self.result: self.last} if self.result else self.views


@dataclass(frozen=True)
class Baseline:
    """A library call. `computes` is False for a yardstick that moves the same bytes without computing the contract.

    `make(views, scalars)` takes input and output views; `packages` must be importable.
    """

    name: str
    summary: str
    packages: tuple[str, ...]
    make: Callable[[Views, Mapping[str, float]], Runner]
    computes: bool = True

    def unavailable(self) -> str | None:
        """Why it cannot run here, or None."""
        missing = [p for p in self.packages if importlib.util.find_spec(p) is None]
        if missing:
            return f"{', '.join(missing)} is not installed (extra `bench`)"
        import torch

        return None if torch.cuda.is_available() else "torch sees no CUDA device"

    def versions(self) -> dict[str, str]:
        """Installed versions of its packages."""
        found = {}
        for p in self.packages:
            try:
                found[p] = version(p.replace("_", "-"))
            except PackageNotFoundError:
                found[p] = "unknown"
        return found


def registry() -> dict[str, Baseline]:
    """All baselines by name. Importing this needs no torch."""
    from corpus.baselines import kmeans, torch_ops

    return {b.name: b for b in (*torch_ops.BASELINES, *kmeans.BASELINES)}
