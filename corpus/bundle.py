"""The evidence bundle: one zip that `cake selftest` writes on a machine with a GPU and `cake results --import` reads.

    manifest.json                format, cake version, commit, device, driver, compiler, host, one entry per job, hash per file
    jobs/NAME.json               the job as the worker got it, without cubin bytes (see corpus/jobs.py)
    results/NAME.json            what the worker answered, samples and cases included
    cubins/SHA256.cubin          the machine code that ran

A bundle comes from somebody else, so reading it trusts nothing: names have one fixed form and are never used as paths,
sizes are bounded before and while unpacking, every file is in the manifest with its SHA-256, and all JSON goes through
strict models. What the numbers mean is checked by corpus/intake.py.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cake_ir.diagnostics import CakeError, error
from corpus.files import replace
from corpus.jobs import Job

FORMAT = 1
MAX_BUNDLE = 64 << 20
MAX_FILES = 400
MAX_FILE = 32 << 20
MAX_TOTAL = 256 << 20
MAX_DEPTH = 40
_NAME = re.compile(r"manifest\.json|(?:jobs|results)/[a-z0-9_.-]{1,80}\.json|cubins/[0-9a-f]{64}\.cubin")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")
"""Characters that steer a terminal or the reading direction, and halves of characters, which no file can hold; evidence is
printed and kept, so no bundle holds any."""
_PRIVATE = ("uuid", "serial", "hostname", "pci_bus_id")
"""Device facts that name one very machine; they are left out of a bundle."""

Text = Field(default="", max_length=2_000)


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Host(_Model):
    """The machine, without anything that names it or its user."""

    system: str = Text
    machine: str = Text
    python: str = Text


class Entry(_Model):
    """One job. `name` names its files; `status`: passed, failed (its result says why), error (no result: `code` and
    `message`). `kind` check or bench."""

    name: str = Field(pattern=r"^[a-z0-9_.-]{1,80}$")
    kernel: str = Field(max_length=80)
    target: str = Field(max_length=20)
    kind: Literal["check", "bench"]
    status: Literal["passed", "failed", "error"]
    code: str = Text
    message: str = Text
    seconds: float = 0.0


class Manifest(_Model):
    """What a bundle says about itself. `date` ISO 8601 UTC; `complete`: the run was not cut short."""

    format: Literal[1]
    cake: str = Field(max_length=40)
    commit: str = Field(max_length=80)
    date: str = Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(Z|\+00:00)$")
    command: str = Field(max_length=400)
    complete: bool
    device: dict[str, Any]
    driver: str = Field(max_length=80)
    compiler: str = Field(max_length=80)
    packages: dict[str, str] = Field(default_factory=dict)
    host: Host
    entries: tuple[Entry, ...] = Field(max_length=MAX_FILES)
    files: dict[str, str] = Field(default_factory=dict, description="name in the zip -> SHA-256")


@dataclass(frozen=True)
class Part:
    """An entry with its job (None: it could not be prepared) and the worker's result object (None on an error)."""

    entry: Entry
    job: Job | None
    result: dict[str, Any] | None


@dataclass(frozen=True)
class Bundle:
    """A bundle whose hashes and forms are right. `sha256` is that of the whole file."""

    manifest: Manifest
    parts: tuple[Part, ...]
    cubins: dict[str, bytes]
    sha256: str


def host() -> Host:
    """This machine."""
    return Host(system=platform.system(), machine=platform.machine(), python=platform.python_version())


def public(device: Mapping[str, Any]) -> dict[str, Any]:
    """Facts of a device without those that name the very machine."""
    return {k: v for k, v in device.items() if k not in _PRIVATE}


def write(path: Path, manifest: Manifest, parts: Sequence[Part], cubins: Mapping[str, bytes]) -> Path:
    """Write a bundle through a neighbour and a rename; `manifest.files` is filled in here. Raises OSError."""
    files: dict[str, bytes] = {}
    for part in parts:
        name = part.entry.name
        if part.job is not None:
            bare = part.job.model_copy(update={"cubins": {}, "cubin_paths": {}, "contracts_dir": None})
            files[f"jobs/{name}.json"] = bare.model_dump_json().encode()
        if part.result is not None:
            files[f"results/{name}.json"] = json.dumps(_without_private(part.result), separators=(",", ":")).encode()
    files |= {f"cubins/{sha}.cubin": data for sha, data in cubins.items()}
    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in sorted(files.items())}
    whole = manifest.model_copy(update={"files": hashes})
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as zipped:
        # one fixed time stamp: the same evidence makes the same bytes
        for name, data in [("manifest.json", whole.model_dump_json(indent=1).encode()), *sorted(files.items())]:
            zipped.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), data, zipfile.ZIP_DEFLATED)
    replace(path, out.getvalue())
    return path


def read(path: Path) -> Bundle:
    """A bundle from a file. Raises CakeError: `bundle/unreadable` (no file, no zip, cut off), `bundle/too-large`,
    `bundle/unsafe` (a name or an entry that no bundle has), `bundle/malformed` (JSON that does not fit), `bundle/hash`."""
    try:
        with path.open("rb") as handle:  # what says no size (a pipe, a device) is bounded too
            raw = handle.read(MAX_BUNDLE + 1)
    except OSError as exc:
        _bad("unreadable", f"{path} cannot be read: {exc.strerror}")
    if len(raw) > MAX_BUNDLE:
        _bad("too-large", f"{path.name} is larger than {MAX_BUNDLE >> 20} MiB; no bundle is")
    files = _unpack(raw)
    if "manifest.json" not in files:
        _bad("malformed", "the bundle has no manifest.json")
    manifest = _model(Manifest, files.pop("manifest.json"), "manifest.json")
    _hashes(manifest, files)
    cubins = {
        name.removeprefix("cubins/").removesuffix(".cubin"): data
        for name, data in files.items()
        if name.startswith("cubins/")
    }
    wrong = [sha for sha, data in cubins.items() if hashlib.sha256(data).hexdigest() != sha]
    if wrong:
        _bad("hash", f"cubin {wrong[0][:12]} does not have the SHA-256 that names it")
    names = [e.name for e in manifest.entries]
    if len(set(names)) != len(names):
        _bad("malformed", "two entries of the manifest have one name")
    parts = tuple(_part(e, files) for e in manifest.entries)
    known = {f"{folder}/{n}.json" for n in names for folder in ("jobs", "results")}
    strange = [n for n in files if not n.startswith("cubins/") and n not in known]
    if strange:
        _bad("malformed", f"{strange[0]} belongs to no entry of the manifest")
    return Bundle(manifest, parts, cubins, hashlib.sha256(raw).hexdigest())


def _part(entry: Entry, files: Mapping[str, bytes]) -> Part:
    job_file, result_file = f"jobs/{entry.name}.json", f"results/{entry.name}.json"
    job = _model(Job, files[job_file], job_file) if job_file in files else None
    if job is not None and (job.cubins or job.cubin_paths or job.contracts_dir):
        _bad("unsafe", f"{job_file} names paths or carries machine code of its own")
    result = _json(files[result_file], result_file) if result_file in files else None
    if entry.status != "error" and (job is None or result is None):
        _bad("malformed", f"entry {entry.name} is {entry.status} but has no {'job' if job is None else 'result'}")
    return Part(entry, job, result)


def _unpack(raw: bytes) -> dict[str, bytes]:
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as zipped:
            infos = zipped.infolist()
            if len(infos) > MAX_FILES:
                _bad("too-large", f"the bundle holds {len(infos)} files; at most {MAX_FILES}")
            out: dict[str, bytes] = {}
            left = MAX_TOTAL
            for info in infos:
                _admissible(info, out)
                with zipped.open(info) as source:  # a header may lie about the size, so it is counted while unpacking
                    data = source.read(min(MAX_FILE, left) + 1)
                if len(data) > min(MAX_FILE, left):
                    _bad("too-large", f"{info.filename} unpacks to more than a bundle may hold")
                left -= len(data)
                out[info.filename] = data
            return out
    except (zipfile.BadZipFile, EOFError, OSError, ValueError, NotImplementedError, RuntimeError) as exc:
        _bad("unreadable", f"the bundle is no whole zip file: {str(exc)[:120]}")
    except zlib.error as exc:
        _bad("unreadable", f"the bundle is damaged: {str(exc)[:120]}")


def _admissible(info: zipfile.ZipInfo, known: Mapping[str, bytes]) -> None:
    # the name as it stands in the file: zipfile cuts it at a NUL
    if info.orig_filename != info.filename or _NAME.fullmatch(info.filename) is None:
        _bad("unsafe", f"a bundle holds no file named {info.filename[:80]!r}")
    if info.filename in known:
        _bad("unsafe", f"the bundle holds {info.filename} twice")
    if info.flag_bits & 0x1:
        _bad("unsafe", f"{info.filename} is encrypted")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        _bad("unsafe", f"{info.filename} is packed by a method that no bundle uses")
    if info.file_size > MAX_FILE:
        _bad("too-large", f"{info.filename} unpacks to {info.file_size} bytes; at most {MAX_FILE >> 20} MiB")


def _hashes(manifest: Manifest, files: Mapping[str, bytes]) -> None:
    for name in sorted({*manifest.files, *files}):
        if name not in files:
            _bad("hash", f"{name[:80]!r} stands in the manifest but not in the bundle")
        if name not in manifest.files:
            _bad("hash", f"{name} stands in the bundle but not in the manifest")
        if hashlib.sha256(files[name]).hexdigest() != manifest.files[name]:
            _bad("hash", f"{name} is not the file that the manifest names: its SHA-256 differs")


M = TypeVar("M", bound=BaseModel)


def _model(kind: type[M], raw: bytes, name: str) -> M:
    try:
        return kind.model_validate(_json(raw, name))
    except ValidationError as exc:
        first = exc.errors()[0]
        _bad("malformed", f"{name}: {'.'.join(map(str, first['loc']))[:120]}: {first['msg'][:160]}")


def _json(raw: bytes, name: str) -> dict[str, Any]:
    """A JSON object of bounded depth; NaN and infinities are no JSON."""

    def refuse(word: str) -> NoReturn:
        raise ValueError(f"{word} is no JSON number")

    try:
        value = json.loads(raw, parse_constant=refuse)
    except (ValueError, RecursionError) as exc:
        _bad("malformed", f"{name} is no JSON: {str(exc)[:120]}")
    if not isinstance(value, dict):
        _bad("malformed", f"{name} is no JSON object")
    if _depth(value) > MAX_DEPTH:
        _bad("malformed", f"{name} is nested more than {MAX_DEPTH} deep")
    if any(_CONTROL.search(text) for text in _strings(value)):
        _bad("unsafe", f"{name} holds control characters")
    return value


def _strings(value: Any) -> Iterator[str]:
    """Every string of a JSON value of bounded depth, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _strings(item)


def _depth(value: Any) -> int:
    """Nesting depth, counted level by level so that a hostile one exhausts nothing."""
    depth, level = 0, [value]
    while level and depth <= MAX_DEPTH:
        depth += 1
        level = [
            v for x in level if isinstance(x, dict | list) for v in (x.values() if isinstance(x, dict) else x)
            if isinstance(v, dict | list)
        ]  # fmt: skip
    return depth


def _without_private(value: Any) -> Any:
    if isinstance(value, str):
        return _CONTROL.sub(" ", value)
    if isinstance(value, Mapping):
        return {k: _without_private(v) for k, v in value.items() if k not in _PRIVATE}
    return [_without_private(v) for v in value] if isinstance(value, list | tuple) else value


def _bad(code: str, message: str) -> NoReturn:
    law = "An evidence bundle is the file that `cake selftest` wrote, whole and unchanged."
    raise CakeError(error(f"bundle/{code}", "data", message, contract=law))
