"""Is committed evidence still about the kernel as it is? Every record with a cubin hash is built again and compared.

A record goes stale when the corpus kernel's text changes, when its contract changes, or when the compiler locked here
turns the same kernel and bindings into other machine code (emission or the compiler changed). The first two are seen on
reading; the third needs a build, so what the last rebuild found is kept in `stale.json`, which CI compares with a fresh
one: no record is stale in silence.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cake_ir.diagnostics import CakeError
from corpus.kernels import CorpusKernel, kernels, programs

MARKS = "stale.json"
KEYS = ("kernel", "content_id", "contract_digest", "target", "bindings", "cubin_sha256")
"""What a JSON object must carry, in whatever evidence file, to be a record about a variant of a corpus kernel."""


@dataclass(frozen=True)
class Built:
    """A variant as this machine's compiler builds it. sha256: of a program's kernels in launch order, with commas between."""

    sha256: str
    compiler: str


@dataclass(frozen=True)
class Record:
    """One record of one evidence file, named from the results directory. `row` is the JSON object."""

    file: str
    row: Mapping[str, Any]

    @property
    def variant(self) -> tuple[str, str, str, str]:
        """(kernel, target, bindings as canonical JSON, cubin): what is built once and marked once."""
        bindings = json.dumps(self.row["bindings"], sort_keys=True)
        return str(self.row["kernel"]), str(self.row["target"]), bindings, str(self.row["cubin_sha256"])


def records(directory: Path) -> list[Record]:
    """Every record with a cubin hash under a results directory and its folders, whatever kind of file it stands in."""
    out = []
    for path in sorted(directory.rglob("*.json")):
        if path.name == MARKS:
            continue
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            continue  # `results` names a file that does not parse
        out += [Record(path.relative_to(directory).as_posix(), row) for row in _rows(raw)]
    return out


def _rows(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, dict):
        if all(k in value for k in KEYS) and isinstance(value["bindings"], dict):
            yield value
            return
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _rows(item)


def rebuilt(
    kernel: CorpusKernel, bindings: Mapping[str, Any], target: str, cache_dir: Path | None = None
) -> Built | str:
    """The variant as it builds here, or why it does not (no compiler, or it does not bind any more)."""
    from cake_ir import parse
    from corpus import executable
    from lowering.compile import compile_cuda

    unbound = "the kernel does not bind with these values any more"
    try:
        file = parse(kernel.text(), kernel.file).file
        if file is None:
            return unbound
        made = executable.load(file, {**kernel.bindings, **bindings}, target, kernel.kernel)
    except CakeError:
        return unbound
    try:
        compiled = [compile_cuda(e.cuda, e.arch, cache_dir=cache_dir) for e in made.emitted]
    except CakeError as exc:
        return exc.diagnostic.message
    shas = dict.fromkeys(c.sha256 for c in compiled)
    return Built(",".join(shas), f"NVRTC {compiled[0].nvrtc_version}")


def find_marks(directory: Path, cache_dir: Path | None = None) -> list[dict[str, Any]]:
    """Build every distinct variant of the records once; one mark per variant whose machine code differs now.

    Records of a kernel whose text has changed are left out: they need no build to be seen stale.
    Raises CakeError `lowering/compiler-missing` where nothing can be built.
    """
    from corpus.evidence import current_id
    from lowering.compile import compiler_versions

    compiler_versions()
    table = {k.name: k for k in (*kernels(), *programs())}
    found: dict[tuple[str, str, str, str], dict[str, Any]] = {}
    seen: set[tuple[str, str, str, str]] = set()
    for record in records(directory):
        kernel = table.get(str(record.row["kernel"]))
        if kernel is None or record.variant in seen or record.row["content_id"] != current_id(kernel):
            continue
        seen.add(record.variant)
        name, target, bindings, sha = record.variant
        now = rebuilt(kernel, record.row["bindings"], target, cache_dir)
        # a job may carry further cubins
        if isinstance(now, Built) and set(now.sha256.split(",")) <= set(sha.split(",")):
            continue
        why = f"its kernel now builds to cubin {now.sha256[:12]} with {now.compiler}" if isinstance(now, Built) else now
        found[record.variant] = {
            "kernel": name, "target": target, "bindings": json.loads(bindings), "cubin_sha256": sha, "why": why,
        }  # fmt: skip
    return [found[key] for key in sorted(found)]


def stale_files(directory: Path, known: Mapping[tuple[str, str, str, str], str]) -> dict[str, int]:
    """How many records of each evidence file that holds no timing rows are stale. known: marks by variant."""
    from corpus.evidence import changed, read_rows

    out: dict[str, int] = {}
    for record in records(directory):
        if not read_rows(directory / record.file) and (changed(record.row) or known.get(record.variant)):
            out[record.file] = out.get(record.file, 0) + 1
    return out


def write_marks(marks: list[dict[str, Any]], directory: Path) -> Path:
    """Record what a rebuild found, so that readers without a compiler know."""
    from corpus.evidence import replace

    return replace(directory / MARKS, {"kind": "stale", "marks": marks})


def marks(directory: Path) -> dict[tuple[str, str, str, str], str]:
    """Why, by variant, as the last recorded rebuild found it; empty without a record."""
    path = directory / MARKS
    return dict(_read_marks(path, path.stat().st_mtime_ns)) if path.exists() else {}


@functools.lru_cache(maxsize=8)
def _read_marks(path: Path, mtime: int) -> tuple[tuple[tuple[str, str, str, str], str], ...]:
    rows = json.loads(path.read_text(encoding="utf-8"))["marks"]
    return tuple((Record(path.name, r).variant, str(r["why"])) for r in rows)
