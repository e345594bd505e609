"""What the steps of an evaluation say: builds and checks in words, and how their results are joined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from server.results import Result, clean, plain


def counts(cases: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    out: dict[str, int] = {}
    for case in cases:
        out[case["verdict"]] = out.get(case["verdict"], 0) + 1
    return out


def resource_words(report: Mapping[str, Any]) -> str:
    used = report["resources"]
    spilled = used["spill_store_bytes"] + used["spill_load_bytes"]
    smem = used["static_smem"] + used["dynamic_smem"]
    blocks = "block" if report["blocks_per_sm"] == 1 else "blocks"
    return (
        f" ({used['registers']} registers, {f'{spilled} bytes spilled' if spilled else 'no spills'}, "
        f"{smem} bytes of shared memory, {report['blocks_per_sm']} {blocks} per SM, limited by {report['limited_by']})"
    )


def case_words(case: Mapping[str, Any]) -> dict[str, Any]:
    """What a reader needs of a case that failed; the artifact has the rest."""
    return plain(
        {k: case[k] for k in ("shape", "distribution", "dtypes", "cause", "message", "worst", "owner") if case.get(k)}
    )


def verdictless(summary: str) -> str:
    """A check's sentence without the verdict in front, which the status says already."""
    return clean(summary.removeprefix("passed: ").removeprefix("failed: "), 300)


def joined(done: Result, name: str, part: Result) -> Result:
    """Append one step's outcome to the running result."""
    done.summary += f"; {part.summary}"
    done.status = part.status
    done.ids |= part.ids
    key = name.replace("-", "_")
    # What failed is what the reader has to see, before the facts of the build.
    done.data = {**done.data, key: part.data} if part.status == "passed" else {key: part.data, **done.data}
    done.artifacts += part.artifacts
    done.diagnostics += part.diagnostics
    done.total += part.total
    done.next = part.next
    return done
