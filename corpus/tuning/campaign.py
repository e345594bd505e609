"""A campaign: what a machine without a GPU prepares and a GPU machine measures. One folder, plain data.

    campaign.json        family, settings, candidates with their records, shapes, who is measured where, rejections
    cubins/SHA256        machine code

The folder crosses machines, so reading it trusts nothing: strict models, bounded sizes, machine code checked against its name.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cake_ir.diagnostics import CakeError, error
from corpus import files
from corpus.contract import Contract, contracts
from corpus.routes import check_recipe

FORMAT = 1
MAX_BYTES = 64 << 20
MAX_CUBIN = 16 << 20
_SHA = re.compile(r"[0-9a-f]{64}\Z")
NAME = r"^[a-z][a-z0-9_]{0,63}$"
"""Of families and targets: they become names of files."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Settings(_Model):
    """How much is compiled and measured. Times in seconds unless named otherwise.

    ranked: shapes on which seeds are ranked before any is compiled. compiled: most candidates per element type; twins: of those
    for each element type that takes their routes; per_shape, per_large: most of them at a shape; within: where predictions are
    there, drop those that take longer than so many times the best. rounds: interleaved rounds, all candidates once in each;
    sample_ms: least length of a sample; gap, gap_large: idle after a round; hang: longest wait for one launch; restart: of a
    process after a hang. unseen: shapes drawn for validation.
    """

    ranked: int = Field(default=30, ge=1, le=1000)
    compiled: int = Field(default=90, ge=1, le=400)
    twins: int = Field(default=48, ge=0, le=400)
    per_shape: int = Field(default=44, ge=1, le=400)
    per_large: int = Field(default=20, ge=1, le=100)
    within: float = Field(default=4.0, gt=1)
    rounds: int = Field(default=8, ge=5, le=100)
    sample_ms: float = Field(default=0.5, ge=0.5, le=100)
    warmup_ms: float = Field(default=1.0, gt=0, le=1000)
    gap: float = Field(default=0.004, ge=0, le=1)
    gap_large: float = Field(default=0.04, ge=0, le=5)
    hang: float = Field(default=10.0, gt=0, le=120)
    restart: float = Field(default=12.0, gt=0, le=120)
    unseen: int = Field(default=24, ge=0, le=400)


class Kernel(_Model):
    """A member's text as it was verified."""

    text: str = Field(max_length=256 << 10)
    kernel: str | None
    content_id: str


class Record(_Model):
    """One compiled candidate. dtypes: choices of its contract's dtype parameters; recipe: how it is launched (`lowering.recipe`);
    cubins: SHA-256 by the cubin key that the recipe names; twins: id by element type that takes its routes; twin: it is one."""

    id: str = Field(max_length=300)
    kernel: str
    bindings: dict[str, int | float | bool | str]
    dtype: str
    dtypes: dict[str, str] = Field(default_factory=dict)
    content_id: str
    variant_id: str
    recipe: dict[str, Any]
    cubins: dict[str, str]
    resources: tuple[dict[str, Any], ...] = ()
    twins: dict[str, str] = Field(default_factory=dict)
    twin: bool = False


class ShapeEntry(_Model):
    """A tuning shape and, per element type, the ids of the candidates to measure there, best prediction first."""

    set: str = Field(max_length=40)
    dims: dict[str, Annotated[int, Field(ge=0, lt=1 << 48)]]
    candidates: dict[str, tuple[str, ...]]


class Rejected(_Model):
    """A seed that a gate stopped. cost_s: GPU seconds that measuring it as its siblings are would have taken, by its predicted
    times; None where it could not be bound, so that nothing is predicted."""

    id: str
    kernel: str
    bindings: dict[str, int | float | bool | str]
    dtype: str
    gate: Literal["bind", "verify", "compile"]
    rule: str
    reason: str
    hangs: bool = False
    cost_s: float | None = None


class Campaign(_Model):
    """See the module. predictions: microseconds by candidate id, one per shape (None: not taken). seeds: all bindings; legal: those
    that bind and pass the static rules; verified: those that prediction chose and the whole verifier accepts."""

    format: Literal[1] = FORMAT
    family: str = Field(pattern=NAME)
    target: str = Field(pattern=NAME)
    date: str
    commit: str
    command: str
    compiler: str
    seed: int = Field(ge=0, lt=1 << 63)
    settings: Settings
    contracts: dict[str, dict[Literal["name", "digest"], str]]
    kernels: dict[str, Kernel]
    candidates: tuple[Record, ...]
    shapes: tuple[ShapeEntry, ...]
    predictions: dict[str, tuple[float | None, ...]]
    seeds: int
    legal: int
    verified: int
    rejected: tuple[Rejected, ...] = ()
    prepare_s: float = 0.0

    def record(self, name: str) -> Record:
        """A candidate by id. Raises CakeError `tuning/bad-campaign`."""
        for c in self.candidates:
            if c.id == name:
                return c
        _bad(f"no candidate {name!r}")

    @property
    def left_out(self) -> int:
        """Legal seeds that were not looked at further, because others are predicted to be quicker wherever they run."""
        own = {c.dtype for c in self.candidates if not c.twin}
        stopped = sum(r.gate == "verify" and r.dtype in own for r in self.rejected) - (
            self.seeds - self.legal - self._unbound
        )
        return self.legal - self.verified - stopped

    @property
    def _unbound(self) -> int:
        own = {c.dtype for c in self.candidates if not c.twin}
        return sum(r.gate == "bind" and r.dtype in own for r in self.rejected)

    @property
    def id(self) -> str:
        """`tc_` and 32 hex digits of everything in it: what a journal belongs to."""
        return "tc_" + hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:32]

    def contract(self, dtype: str) -> Contract:
        """The contract of an element type as it is here. Raises CakeError when it is another than the one prepared for."""
        said = self.contracts[dtype]
        found = contracts().get(said["name"])
        if found is None or found.digest != said["digest"]:
            here = found.digest if found else "unknown"
            _bad(f"contract {said['name']} is {here} here, the campaign has {said['digest']}: prepare again")
        return found


def write(directory: Path, campaign: Campaign, cubins: Mapping[str, bytes]) -> Path:
    """Write the folder; campaign.json last, so that a folder with one is whole. Raises OSError."""
    folder = directory / "cubins"
    folder.mkdir(parents=True, exist_ok=True)
    for sha, data in cubins.items():
        files.replace(folder / sha, data)
    path = directory / "campaign.json"
    files.replace(path, campaign.model_dump_json(indent=1).encode())
    return path


def read(directory: Path) -> Campaign:
    """The campaign of a folder. Raises CakeError `tuning/bad-campaign`."""
    path = directory / "campaign.json"
    try:
        with path.open("rb") as handle:
            raw = handle.read(MAX_BYTES + 1)
    except OSError as exc:
        _bad(f"{path} cannot be read ({exc.strerror}); make it with `cake tune FAMILY --prepare {directory}`")
    if len(raw) > MAX_BYTES:
        _bad(f"{path} is larger than {MAX_BYTES >> 20} MiB")
    try:
        found = Campaign.model_validate(json.loads(raw))
    except (ValueError, RecursionError, ValidationError) as exc:
        _bad(f"{path}: {str(exc)[:300]}")
    known = {c.id for c in found.candidates}
    if len(known) != len(found.candidates):
        _bad("candidates have distinct ids")
    for entry in found.shapes:
        lost = [n for names in entry.candidates.values() for n in names if n not in known]
        if lost:
            _bad(f"shape {entry.dims} names the unknown candidate {lost[0]!r}")
    for c in found.candidates:
        if (
            c.kernel not in found.kernels
            or c.dtype not in found.contracts
            or not all(map(_SHA.match, c.cubins.values()))
            or not known.issuperset(c.twins.values())
        ):
            _bad(f"candidate {c.id} names a kernel, element type, twin or cubin that is not there")
        check_recipe(c.recipe, f"candidate {c.id}")
        if not c.twin and len(found.predictions.get(c.id, ())) != len(found.shapes):
            _bad(f"candidate {c.id} has not one prediction per shape")
    if not all(len(said) == 2 for said in found.contracts.values()):
        _bad("a contract has a name and a digest")
    return found


def cubin(directory: Path, sha: str) -> bytes:
    """Machine code by its SHA-256. Raises CakeError `tuning/bad-campaign` when the bytes are others."""
    if not _SHA.match(sha):
        _bad(f"{sha[:80]!r} is no SHA-256")
    path = directory / "cubins" / sha
    try:
        with path.open("rb") as handle:
            data = handle.read(MAX_CUBIN + 1)
    except OSError as exc:
        _bad(f"{path} cannot be read: {exc.strerror}")
    if hashlib.sha256(data).hexdigest() != sha:
        _bad(f"{path} does not have that SHA-256")
    return data


def _bad(message: str) -> NoReturn:
    law = "A campaign folder is what `cake tune FAMILY --prepare DIR` wrote."
    raise CakeError(error("tuning/bad-campaign", "data", message, contract=law))
