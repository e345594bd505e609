"""From a campaign and its journal to lists of routes: the same pure steps on the GPU machine, which then measures the
validation shapes, and where the table is written."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cake_ir.diagnostics import CakeError, error
from corpus.families import Family, Shape
from corpus.tuning import buckets, validate
from corpus.tuning.buckets import Listing, NotCovered
from corpus.tuning.campaign import Campaign
from corpus.tuning.journal import Journal, shape_key
from corpus.tuning.observed import Observed, observe, taken_by, trusted

CUT = "cut"
TUNE, VALIDATE, JUDGE = "tune", "validate", "judge"
"""Phases of a journal's shapes: candidates on the tuning shapes, the table's variants on the validation shapes, variants of the
element types that take these routes."""


@dataclass(frozen=True)
class Decision:
    """The routes of one element type. tuned: how many of the shapes are tuning shapes (they come first). probe_takes[p, c] and
    probe_features: of `validate.probes`."""

    dtype: str
    seen: Observed
    listing: Listing
    probe_shapes: tuple[Shape, ...]
    probe_takes: np.ndarray
    probe_features: tuple[Mapping[str, int], ...]
    tuned: int

    def name(self, column: int) -> str:
        """A candidate's id."""
        return self.seen.candidates[column]

    @property
    def named(self) -> tuple[str, ...]:
        """Ids of the candidates that the routes use."""
        return tuple(self.name(c) for c in self.listing.candidates)

    def choose(self, family: Family, sms: int, shape: Shape, takes: Mapping[str, bool]) -> str | None:
        """The id that serves a shape; takes: by id."""
        c = buckets.serve(self.listing, family.features(shape, sms), lambda c: takes.get(self.name(c), False))
        return None if c < 0 else self.name(c)


def served_dtypes(family: Family, campaign: Campaign) -> list[str]:
    """Element types that this campaign has candidates for, those with routes of their own first."""
    tuned = [d for d in family.tuned_dtypes if any(d in e.candidates for e in campaign.shapes)]
    return tuned + [
        d for d, source in family.alike.items() if source in tuned and any(c.dtype == d for c in campaign.candidates)
    ]


def decided_on(family: Family, campaign: Campaign, journal: Journal, dtype: str) -> list[dict[str, Any]]:
    """The lines that routes rest on: the tuning shapes and, from the validation of earlier routes, the boundary shapes and every second
    unseen one. The latter lie where a family's shapes leave room, so routes do not reach into what nobody has measured; the held-out
    shapes and the other unseen ones are never among them. Tuning shapes that a short budget cut off take part with predictions."""
    source = family.alike.get(dtype, dtype)
    own = [e for e in journal.of("shape") if e["dtype"] == source]
    unseen = [e for e in own if e["phase"] == VALIDATE and e["set"] == validate.UNSEEN]
    joined = [e for e in own if e["phase"] == VALIDATE and e["set"] == validate.BOUNDARY] + unseen[::2]
    tuned = [e for e in own if e["phase"] == TUNE]
    done = {shape_key(e["dims"]) for e in tuned}
    cut = [e.dims for e in campaign.shapes if source in e.candidates and shape_key(e.dims) not in done]
    return tuned + joined + [{"phase": CUT, "dims": d, "contenders": {}} for d in cut]


def decide(
    family: Family, campaign: Campaign, journal: Journal, dtype: str, sms: int, *, quick: bool = False
) -> Decision:
    """Routes from what was measured (`decided_on`); for an element type that is alike another, from the times of that one and
    with its twins. quick: as of `buckets.learn`. Raises CakeError `tuning/nothing-measured`, `tuning/not-covered`."""
    entries = decided_on(family, campaign, journal, dtype)
    # a later shape may show a candidate to be wrong; then it serves nothing, and the routes are made anew without it
    wrong = {
        n for e in journal.of("shape") for n, c in e["contenders"].items() if c["check"] == "failed"
    } | journal.lost_ids
    judged = None
    if dtype in family.alike and not quick:  # while the campaign runs, twins are named first and judged then
        own = [e for e in journal.of("shape") if e["dtype"] == dtype]
        judged = frozenset(n for e in own for n, c in e["contenders"].items() if c["check"] == "passed")
    key = (family.name, dtype, sms, quick, len(entries), frozenset(wrong), judged)
    if key not in journal.memo:
        journal.memo[key] = _decide(family, campaign, dtype, entries, wrong, judged, sms, quick)
    return journal.memo[key]


def _decide(
    family: Family, campaign: Campaign, dtype: str, entries: Sequence[Mapping[str, Any]], wrong: set[str],
    judged: frozenset[str] | None, sms: int, quick: bool,
) -> Decision:  # fmt: skip
    source = family.alike.get(dtype, dtype)
    good = trusted(entries, wrong)
    stands = {c.id: c.id if source == dtype else c.twins.get(dtype, "") for c in campaign.candidates if c.id in good}
    names = {n: m for n, m in stands.items() if m and m not in wrong and (judged is None or m in judged)}
    if not names:
        raise _failed("tuning/nothing-measured", f"no candidate of {family.name} for {dtype} was measured and right")
    seen = observe(family, campaign, names, entries, sms)
    shapes = validate.probes(family, campaign.seed)
    taken = taken_by(family, campaign, seen.candidates, sms)
    takes = np.array([[t(s) for t in taken] for s in shapes])
    may = {m.kernel for m in family.kernels if m.fallback}
    allowed = [c for c, n in enumerate(seen.candidates) if campaign.record(n).kernel in may]
    # what no kernel takes at all is said by the report and no reason for no table
    seen = seen.subset([s for s in range(len(seen.shapes)) if seen.takes[s].any()])
    served = takes[:, allowed].any(axis=1)
    try:
        listing = buckets.learn(seen, allowed, takes[served], family.most_variants, campaign.seed, quick=quick)
    except NotCovered as exc:
        shape = shapes[int(np.flatnonzero(served)[exc.at])] if exc.at >= 0 else seen.shapes[exc.at + len(seen.shapes)]
        raise _failed("tuning/not-covered", f"no fallback of {family.name} for {dtype} takes {_text(shape)}") from exc
    features = tuple(family.features(s, sms) for s in shapes)
    tuning = {shape_key(e["dims"]) for e in entries if e["phase"] == TUNE}
    return Decision(
        dtype, seen, listing, tuple(shapes), takes, features, sum(shape_key(s) in tuning for s in seen.shapes)
    )


def to_validate(
    family: Family, campaign: Campaign, decision: Decision, sms: int
) -> list[tuple[str, Shape, tuple[str, ...]]]:
    """(set, shape, ids that take it) for the phase `validate`: the variants of the table, and those it might as well have named, so
    that another table from the same times is validated too."""
    runners_up = buckets.pool(decision.seen, decision.listing.candidates, 2 * family.most_variants)
    names = list(dict.fromkeys([*decision.named, *(decision.name(c) for c in runners_up)]))
    taken = taken_by(family, campaign, names, sms)

    def fitting(shape: Shape) -> tuple[str, ...]:
        return tuple(n for n, takes in zip(names, taken, strict=True) if takes(shape))

    rows = validate.plan(
        family,
        decision.listing,
        decision.seen,
        sms,
        campaign.settings.unseen,
        campaign.seed,
        lambda s: bool(fitting(s)),
    )
    return [(name, shape, fitting(shape)) for name, shape in rows]


def validated(
    family: Family, campaign: Campaign, journal: Journal, decision: Decision, sms: int
) -> list[dict[str, Any]]:
    """One row per validation shape that was measured: {"set", "dims", "chosen", "best", "loss", "us"}; loss is served time over best,
    and a time of a boundary within the noise of it counts as it is."""
    taken = dict(zip(decision.named, taken_by(family, campaign, decision.named, sms), strict=True))
    rows = []
    known = {shape_key(s) for s in decision.seen.shapes}
    for e in journal.of("shape"):
        if e["phase"] != VALIDATE or e["dtype"] != decision.dtype or shape_key(e["dims"]) in known:
            continue
        us = {n: c["us"] for n, c in e["contenders"].items() if "us" in c and c["check"] == "passed" and n in taken}
        takes = {n: t(e["dims"]) for n, t in taken.items()}
        chosen = decision.choose(family, sms, e["dims"], takes)
        if chosen is None or chosen not in us:
            continue
        best = min(us, key=lambda n: us[n])
        loss = round(us[chosen] / us[best], 4)
        rows.append(
            {"set": e["set"], "dims": dict(e["dims"]), "chosen": chosen, "best": best, "loss": loss, "us": us[chosen]}
        )
    return rows


def tuned(decision: Decision) -> list[dict[str, Any]]:
    """As `validated`, for the tuning shapes: `best` is out of all candidates, not only those that the table names."""
    seen, chosen = decision.seen, buckets.served(decision.listing, decision.seen)
    rows = []
    for s, c in enumerate(chosen):
        best = int(np.nanargmin(seen.us[s]))
        rows.append(
            {
                "set": "tuned" if s < decision.tuned else "joined" if seen.measured[s].any() else CUT, "dims": dict(seen.shapes[s]),
                "chosen": decision.name(int(c)), "best": decision.name(best),
                "loss": round(float(seen.us[s, c] / seen.us[s, best]), 4), "us": float(seen.us[s, c]),
                "measured": bool(seen.measured[s, c]),
            }
        )  # fmt: skip
    return rows


def report(family: Family, campaign: Campaign, journal: Journal, decision: Decision, sms: int) -> dict[str, Any]:
    """What was proved of the routes of one element type, losses first; plain JSON."""
    rows = [r for r in tuned(decision) if r["set"] != CUT] + validated(family, campaign, journal, decision, sms)
    logs = [x for _, x in decision.listing.folds]
    served = [any(row) for row in decision.probe_takes.tolist()]
    nobody = [s for s, ok in zip(decision.probe_shapes, served, strict=True) if not ok]
    features = [f for f, ok in zip(decision.probe_features, served, strict=True) if ok]
    hole = validate.unserved(decision.listing, decision.probe_takes[np.array(served)], features)
    return {
        "losses": sorted((r for r in rows if math.log(r["loss"]) > decision.seen.noise), key=lambda r: -r["loss"]),
        "sets": validate.losses(rows),
        "quarters_left_out": {"shapes": len(logs), "loss": round(math.exp(sum(logs) / len(logs)), 4)} if logs else {},
        "noise": round(math.exp(decision.seen.noise), 4),
        "least_shapes_of_a_route": decision.listing.least,
        "overlapping": validate.overlapping(decision.listing, decision.seen),
        "missing": validate.missing(decision.listing, decision.seen, decision.probe_takes[np.array(served)], features),
        "probes": {"count": len(served), "served": sum(served), "taken_by_no_kernel": nobody[:8], "hole": hole},
        "rows": rows,
    }  # fmt: skip


def entry_dims(journal: Journal, phase: str, dtype: str) -> set[tuple[tuple[str, int], ...]]:
    """Shapes of a phase that are done."""
    return {shape_key(e["dims"]) for e in journal.of("shape") if e["phase"] == phase and e["dtype"] == dtype}


def _text(shape: Mapping[str, int]) -> str:
    return " ".join(f"{k}={v}" for k, v in shape.items())


def _failed(code: str, message: str) -> CakeError:
    return CakeError(
        error(code, "data", message, contract="A table serves every shape that its family's kernels take.")
    )
