"""The journal of a campaign on the GPU: JSON lines, appended and synchronised one by one, so that what was measured outlives
its process. Beside it lies PATH.at, which says whose launches are under way.

    {"kind": "start", "campaign", "device", "driver", "packages", "date"}      at every start of a process
    {"kind": "shape", "phase", "set", "dtype", "dims", "contenders", ...}      as `measure.measure` gives it
    {"kind": "lost", "candidate", "cause", "message", "dims"}                  a candidate that hung or broke the device
    {"kind": "table", "dtype", "routes"...}  {"kind": "end", ...}

A torn last line is what a killed writer leaves; it is dropped. Anything else that is not such a line is an error.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cake_ir.diagnostics import CakeError, error
from corpus import files

Us = Annotated[float, Field(gt=0, lt=1e9, allow_inf_nan=False)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Contended(_Model):
    """What one candidate did at a shape. us: median of samples_us, microseconds of a call; doubt: why its times cannot be."""

    check: Literal["passed", "failed", "refused"]
    message: str = Field(default="", max_length=400)
    us: Us | None = None
    samples_us: tuple[Us, ...] = Field(default=(), max_length=200)
    batch: int = Field(default=0, ge=0)
    doubt: str = Field(default="", max_length=400)


class Again(_Model):
    """The candidate that was timed twice, and its second samples."""

    of: str
    samples_us: tuple[Us, ...] = Field(default=(), max_length=200)


class ShapeLine(_Model):
    """A line of kind `shape`."""

    kind: Literal["shape"]
    phase: Literal["tune", "validate", "judge"]
    set: str = Field(max_length=40)
    dtype: str = Field(max_length=40)
    dims: dict[str, int]
    contenders: dict[str, Contended]
    again: Again | None = None
    method: str = ""
    step_us: float = 0.0
    notes: tuple[str, ...] = ()
    bytes: int = 0
    seconds: float = 0.0
    skipped: str = ""


class Device(BaseModel):
    """What is asked of a device; there is more in it."""

    model_config = ConfigDict(frozen=True, extra="allow")
    name: str = Field(default="", max_length=200)
    sms: int = Field(ge=1, le=1024)


class StartLine(BaseModel):
    """A line of kind `start`. secret: of the inputs that a contract judges by."""

    model_config = ConfigDict(frozen=True, extra="allow")
    kind: Literal["start"]
    campaign: str = Field(max_length=100)
    secret: str = Field(pattern=r"^[0-9a-f]{32}$")
    device: Device
    date: str = Field(max_length=40)


class LostLine(_Model):
    """A line of kind `lost`."""

    kind: Literal["lost"]
    candidate: str = Field(max_length=300)
    dims: dict[str, int] = Field(default_factory=dict)
    cause: str = Field(default="", max_length=100)
    message: str = Field(default="", max_length=400)


class EndLine(BaseModel):
    """A line of kind `end`."""

    model_config = ConfigDict(frozen=True, extra="allow")
    kind: Literal["end"]
    complete: bool = False
    telemetry: dict[str, Any] | None = None


FORMS: dict[str, type[BaseModel]] = {"start": StartLine, "shape": ShapeLine, "lost": LostLine, "end": EndLine}
MAX_BYTES = 256 << 20
LOCK_S = 2.0
"""How long a process waits for the end of the one before it."""


def shape_key(dims: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """A shape as a key."""
    return tuple(sorted(dims.items()))


class Journal:
    """One journal, to be read, or with `write` to be continued by this process alone.

    Raises CakeError `tuning/bad-journal`, `tuning/busy` while another process writes it, and OSError where it cannot be written.
    """

    def __init__(self, path: Path, campaign_id: str, *, write: bool = False) -> None:
        self.path = path
        self.memo: dict[Any, Any] = {}  # of pure functions of the entries, which are asked again while nothing changes
        self._handle = self._at = -1
        if write:
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            if not files.lock(self._handle, LOCK_S):  # two writers would tear each other's lines
                os.close(self._handle)
                raise _bad(
                    f"{path} is being written by another run; wait for its end, or name another file", "tuning/busy"
                )
        try:
            self._read(path, campaign_id)
            if write:
                os.ftruncate(self._handle, _whole(path))
                self._at = os.open(at_path(path), os.O_RDWR | os.O_CREAT, 0o644)
        except BaseException:
            self.close()
            raise

    def _read(self, path: Path, campaign_id: str) -> None:
        self.entries = list(read(path)) if path.exists() else []
        other = next((e for e in self.entries if e["kind"] == "start" and e.get("campaign") != campaign_id), None)
        if other is not None:
            raise _bad(f"{path} belongs to another campaign ({other.get('campaign')}); name another file")

    def add(self, entry: dict[str, Any]) -> None:
        """Append a line; it is on disk when this returns."""
        from corpus.compare import finite_json

        line = (json.dumps(finite_json(entry), separators=(",", ":")) + "\n").encode()
        done = 0
        while done < len(line):
            done += os.write(self._handle, line[done:])
        os.fsync(self._handle)
        self.entries.append(entry)

    def begin(self, candidate: str, dims: Mapping[str, int]) -> None:
        """Say whose launches come next; seen by whoever looks after this process has died."""
        raw = json.dumps({"candidate": candidate, "dims": dict(dims)}).encode()
        os.pwrite(self._at, raw + b" " * max(0, 512 - len(raw)), 0)

    def rest(self) -> None:
        """Nobody's launches are under way."""
        os.ftruncate(self._at, 0)

    def close(self) -> None:
        for handle in (self._handle, self._at):
            if handle >= 0:
                os.close(handle)
        self._handle = self._at = -1

    def blame(self, cause: str) -> str | None:
        """After the end of a process: record whom its last words name as lost, and return the id."""
        found = standing(self.path)
        if found is None:
            return None
        self.lost(found["candidate"], found["dims"], cause, "its launch did not end, or ended the process")
        self.rest()
        return str(found["candidate"])

    def lost(self, candidate: str, dims: Mapping[str, int], cause: str, message: str) -> None:
        """Record a candidate that is not launched any more."""
        self.add({"kind": "lost", "candidate": candidate, "dims": dict(dims), "cause": cause, "message": message[:300]})

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Lines of a kind."""
        return [e for e in self.entries if e["kind"] == kind]

    @property
    def lost_ids(self) -> set[str]:
        """Candidates that hung or broke the device."""
        return {str(e["candidate"]) for e in self.of("lost")}

    def has(self, phase: str, candidate: str, dims: Mapping[str, int]) -> bool:
        """Whether a candidate ran at a shape in a phase."""
        key = shape_key(dims)
        return any(
            e["phase"] == phase and candidate in e["contenders"] and shape_key(e["dims"]) == key
            for e in self.of("shape")
        )

    def measured(self, phase: str, dtype: str, dims: Mapping[str, int]) -> dict[str, Any] | None:
        """The line of a shape in a phase, or None."""
        key = shape_key(dims)
        return next(
            (e for e in self.of("shape") if e["phase"] == phase and e["dtype"] == dtype and shape_key(e["dims"]) == key), None
        )  # fmt: skip


def at_path(path: Path) -> Path:
    """The file that says whose launches are under way."""
    return path.with_name(path.name + ".at")


def standing(path: Path) -> dict[str, Any] | None:
    """Whose launches were under way when the writer ended; None when nobody's."""
    try:
        found = json.loads(at_path(path).read_bytes()[:4096])
    except (OSError, ValueError):
        return None
    fits = isinstance(found, dict) and isinstance(found.get("candidate"), str) and isinstance(found.get("dims"), dict)
    return found if fits else None


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of a journal. Raises CakeError `tuning/bad-journal`."""
    try:
        with path.open("rb") as handle:
            raw = handle.read(MAX_BYTES + 1)
    except OSError as exc:
        raise _bad(f"{path} cannot be read: {exc.strerror}") from exc
    if len(raw) > MAX_BYTES:
        raise _bad(f"{path} is larger than {MAX_BYTES >> 20} MiB")
    for number, line in enumerate(raw[: raw.rfind(b"\n") + 1].splitlines(), 1):
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as exc:
            raise _bad(f"{path}, line {number}: not JSON") from exc
        if not isinstance(entry, dict) or not isinstance(entry.get("kind"), str):
            raise _bad(f"{path}, line {number}: not a line of a journal")
        form = FORMS.get(entry["kind"])
        if form is not None:
            try:
                checked = form.model_validate(entry)
            except ValidationError as exc:
                raise _bad(f"{path}, line {number}: {str(exc)[:200]}") from exc
            if form is ShapeLine:
                entry = checked.model_dump(mode="json", exclude_none=True)
        yield entry


def _whole(path: Path) -> int:
    """Bytes up to the end of the last whole line."""
    with path.open("rb") as handle:
        raw = handle.read(MAX_BYTES)
    return raw.rfind(b"\n") + 1


def _bad(message: str, rule: str = "tuning/bad-journal") -> CakeError:
    law = "A journal is what `python -m corpus.tuning.run DIR OUT` wrote for this campaign, one process at a time."
    return CakeError(error(rule, "data", message, contract=law))
