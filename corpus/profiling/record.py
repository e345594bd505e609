"""A profile as committed evidence: `corpus/results/profiles/<name>.json`, with its summary and all that it takes to doubt it."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from corpus import evidence, jobs
from corpus.profiling.facts import facts
from corpus.profiling.limiters import summarise

DIRECTORY = evidence.DIRECTORY / "profiles"
MAX_BYTES = 400_000


def record(profile: Mapping[str, Any], job: jobs.Job, *, command: str, date: str, commit: str) -> dict[str, Any]:
    """The JSON of `corpus.jobs.Profile` with its summary, the ids and hashes of what ran, and where it comes from.

    Samples are joined with the very cubin of the job. Raises ValueError when the result is of another job, or the job
    not of a corpus kernel as it is now, and CakeError when that does not bind.
    """
    from cake_ir import bind, content_id, parse
    from cake_ir.diagnostics import CakeError
    from corpus.kernels import kernels
    from lowering.sass import disassemble, parse_sass

    entry = next((k for k in kernels() if k.name == job.kernel), None)
    if entry is None:
        raise ValueError(f"only profiles of corpus kernels are committed, {job.kernel!r} is none")
    for what, said, asked in (
        ("contract", profile["contract_digest"], job.contract_digest),
        ("shape", profile["shape"]["shape"], job.launches[0].shape),
        ("kernel", profile["kernel"], job.kernel),
    ):
        if said != asked:
            raise ValueError(f"this result is not of this job: {what} {said} and {asked}")
    parsed = parse(entry.text(), entry.path.name)
    if parsed.file is None or content_id(parsed.file) != job.content_id:
        raise ValueError(
            f"the job is of another text of {job.kernel} than the corpus has now: prepare and run it again"
        )
    done = bind(parsed.file, dict(job.bindings), job.target, entry.kernel)
    if done.bound is None:
        raise CakeError(next(d for d in done.diagnostics if d.severity == "error"))
    sha = str(job.launches[0].plans[0]["cubin_sha256"])
    sass = parse_sass(disassemble(job.cubin(sha)))
    known = facts(done.bound, entry.text(), job.find_contract(), profile["shape"]["shape"])
    forms = {
        "plain": sha,
        **{f"timeline{n or ''}": str(t.plan["cubin_sha256"]) for n, t in enumerate(job.launches[0].timeline)},
    }
    return {
        **profile, "summary": summarise(profile, sass, known).to_json(), "content_id": job.content_id,
        "variant_id": job.variant_id, "bindings": dict(job.bindings), "target": job.target, "compiler": job.compiler,
        "cubin_sha256": sha, "cubins": forms, "evidence": {"command": command, "date": date, "commit": commit},
    }  # fmt: skip


def write(name: str, recorded: Mapping[str, Any], directory: Path = DIRECTORY) -> Path:
    """Write `<name>.json`, of a long timeline as much as `MAX_BYTES` takes. Raises ValueError for a name that is no word."""
    if not name.replace("-", "_").isidentifier():
        raise ValueError(f"{name!r} is not a plain file name")
    return evidence.replace_text(directory / f"{name}.json", text_of(fitted(recorded)))


def fitted(recorded: Mapping[str, Any], limit: int = MAX_BYTES) -> dict[str, Any]:
    """The record with fewer recorded CTAs (the first and the last stay longest), then fewer spans, until it fits.

    Spans left out are counted in their track's `dropped`; sums by role and line are of the whole recording and stay.
    """
    out = copy.deepcopy(dict(recorded))
    tracks = out["timeline"].get("tracks", [])
    while tracks and len(text_of(out)) > limit:
        ctas = sorted({t["cta"] for t in tracks})
        if len(ctas) > 1:
            gone = ctas[len(ctas) // 2] if len(ctas) > 2 else ctas[1]
            tracks = [t for t in tracks if t["cta"] != gone]
        else:
            most = max(len(t["spans"]) for t in tracks)
            if most < 2:
                break
            for t in tracks:
                t["dropped"] += max(0, len(t["spans"]) - most // 2)
                t["spans"] = t["spans"][: most // 2]
        out["timeline"]["tracks"] = tracks
    return out


def text_of(value: Mapping[str, Any]) -> str:
    """Compact JSON on one line per member."""
    rows = (f"{json.dumps(k)}:{json.dumps(v, sort_keys=True, separators=(',', ':'))}" for k, v in sorted(value.items()))
    return "{\n" + ",\n".join(rows) + "\n}\n"
