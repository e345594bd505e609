"""A small family and campaign for tests: real seeds and recipes of a corpus kernel, machine code that is made up."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import Any

from corpus.contract import contracts
from corpus.families import Derived, Family, Member, Shape
from corpus.tuning import campaign as campaigns
from corpus.tuning.campaign import Campaign, Record, Settings, ShapeEntry
from corpus.tuning.candidates import Candidate, enumerate_seeds
from corpus.tuning.prepare import entries
from corpus.tuning.rank import predict_all

TARGET = "sm_90a"


def shape(b: int, n: int, c: int, d: int) -> Shape:
    return {"B": b, "N": n, "C": c, "D": d}


SMALL = (
    shape(1, 128, 100, 16), shape(1, 256, 100, 16), shape(2, 256, 100, 16), shape(1, 512, 100, 32), shape(1, 128, 128, 64),
    shape(2, 384, 100, 64), shape(1, 256, 100, 80), shape(1, 200, 100, 120),
    shape(2, 200, 128, 96), shape(1, 512, 100, 128), shape(1, 400, 104, 128),
)  # fmt: skip

FAMILY = Family(
    name="small",
    summary="a family for tests",
    contracts={"bf16": "kmeans_assign"},
    kernels=(Member("kmeans_packed", {"DP": (64, 128), "WG": (2, 3), "STAGES": (2, 8)}, fallback=True),),
    dims=("B", "N", "C", "D"),
    ranges={"B": (1, 2), "N": (128, 512), "C": (100, 128), "D": (16, 128)},
    steps={"D": 8},
    derived={
        "points": Derived((("B", 1), ("N", 1)), "points"),
        "waves": Derived((("B", 1), ("N", 128)), "waves", per_sm=True),
    },
    shapes={"given": SMALL, "large": (), "heldout": (shape(1, 300, 100, 48), shape(2, 320, 112, 112))},
    most_variants=4,
)


@functools.cache
def legal() -> tuple[Candidate, ...]:
    """Seeds that bind and pass the static rules: 7 of 8, since eight stages of 128 x 128 do not fit beside 192 rows."""
    return tuple(enumerate_seeds(FAMILY, TARGET).candidates)


@functools.cache
def predicted() -> dict[str, dict[int, float]]:
    """What the model says of every legal seed at every shape."""
    return predict_all(legal(), [s for _, s in entries(FAMILY)])


def make(directory: Path, **more: Any) -> Campaign:
    """A campaign of all legal seeds at every shape, in a folder."""
    found = legal()
    code = {c.id: c.id.encode() for c in found}
    made = Campaign(
        family=FAMILY.name, target=TARGET, date="2026-11-30T12:00:00Z", commit="", command="cake tune small", compiler="NVRTC 13.5",
        seed=3, settings=Settings(unseen=4, **more), contracts={"bf16": _contract()},
        kernels={c.seed.kernel: campaigns.Kernel(text=c.entry.text(), kernel=c.entry.kernel, content_id=c.content_id) for c in found},
        candidates=tuple(_record(c, code[c.id]) for c in found),
        shapes=tuple(
            ShapeEntry(set=name, dims=d, candidates={"bf16": tuple(c.id for c in found if i in predicted()[c.id])})
            for i, (name, d) in enumerate(entries(FAMILY))
        ),
        predictions={c.id: tuple(predicted()[c.id].get(i) for i in range(len(entries(FAMILY)))) for c in found},
        seeds=8, legal=len(found), verified=len(found),
    )  # fmt: skip
    campaigns.write(directory, made, {hashlib.sha256(raw).hexdigest(): raw for raw in code.values()})
    return made


def _contract() -> dict[str, str]:
    return {"name": "kmeans_assign", "digest": contracts()["kmeans_assign"].digest}


def _record(c: Candidate, code: bytes) -> Record:
    (step,) = c.executable.recipe["launches"]
    return Record(
        id=c.id, kernel=c.seed.kernel, bindings=dict(c.seed.bindings), dtype="bf16", content_id=c.content_id,
        variant_id=c.variant_id, recipe=c.executable.recipe, cubins={step["cubin_key"]: hashlib.sha256(code).hexdigest()},
    )  # fmt: skip
