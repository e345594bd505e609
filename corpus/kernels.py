"""The index of corpus kernels: what each `.cake` file is for. The texts are under `corpus/kernels/`."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any, NoReturn

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cake_ir.diagnostics import CakeError, error

DIRECTORY = Path(__file__).parent / "kernels"
INDEX = DIRECTORY / "index.json"


class CorpusKernel(BaseModel):
    """One corpus kernel. `bindings` are tunables that differ from the defaults; `kernel` selects one of several."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    file: str
    targets: tuple[str, ...]
    contract: str
    bindings: dict[str, int | float | bool | str] = Field(default_factory=dict)
    kernel: str | None = None
    summary: str = ""

    @property
    def path(self) -> Path:
        """The `.cake` file."""
        return DIRECTORY / self.file

    def text(self) -> str:
        """The `.cake` text."""
        return self.path.read_text(encoding="utf-8")

    def to_json(self) -> dict[str, Any]:
        """What `cake corpus --json` lists; `target` repeats the targets under the documented name."""
        return {
            "name": self.name,
            "file": f"corpus/kernels/{self.file}",
            "target": list(self.targets),
            "contract": self.contract,
            "bindings": dict(self.bindings),
            "summary": self.summary,
        }


def kernels() -> list[CorpusKernel]:
    """All corpus kernels in index order; raises CakeError `corpus/bad-index` naming the entry and fault."""
    return list(_read(INDEX, INDEX.stat().st_mtime_ns if INDEX.exists() else 0, "kernels"))


def programs() -> list[CorpusKernel]:
    """All corpus programs, files of several kernels with a `@program`, in index order; raises as `kernels`."""
    return list(_read(INDEX, INDEX.stat().st_mtime_ns if INDEX.exists() else 0, "programs"))


def kernel(name: str) -> CorpusKernel:
    """One kernel or program by name; raises CakeError `corpus/unknown-kernel` with the known names."""
    found = [*kernels(), *programs()]
    for k in found:
        if k.name == name:
            return k
    known = ", ".join(k.name for k in found) or "none"
    raise CakeError(
        error("corpus/unknown-kernel", "language", f"no corpus kernel {name!r}; known: {known}",
              contract="Corpus kernels are named in corpus/kernels/index.json.")
    )  # fmt: skip


@functools.lru_cache(maxsize=4)
def _read(path: Path, mtime: int, part: str) -> tuple[CorpusKernel, ...]:
    """One list of the index. Names are distinct over all lists."""
    if not mtime:
        return ()
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        lists = {key: tuple(CorpusKernel.model_validate(e) for e in raw[key]) for key in ("kernels", "programs")}
    except (ValueError, KeyError, TypeError, ValidationError) as exc:
        _bad(f"{path.name} does not parse: {exc}")
    found = [k for entries in lists.values() for k in entries]
    for k in found:
        if not k.path.resolve().is_relative_to(DIRECTORY.resolve()) or not k.path.is_file():
            _bad(f"kernel {k.name}: no file {k.file}")
    names = [k.name for k in found]
    if len(set(names)) != len(names):
        _bad("kernel names are not distinct")
    return lists[part]


def _bad(message: str) -> NoReturn:
    law = "corpus/kernels/index.json lists distinct kernels whose files exist."
    raise CakeError(error("corpus/bad-index", "language", message, contract=law))
