"""The rules that `derive` decides: stable ids, each with the contract it stands for."""

from __future__ import annotations

from typing import Final

CONTRACTS: Final[dict[str, str]] = {
    "derive/no-witness": "Arrival counts come from running the control skeleton on shapes that `where` admits.",
    "derive/no-arrival": "Every barrier that is waited for gets arrivals.",
    "derive/unequal-arrivals": "A barrier has one arrival count: every use that gets any arrival gets the same number.",
    "derive/asserted-arrivals": "`arrivals=` states what the arrive, expect and commit ops of the kernel add up to.",
    "derive/double-expect": "A role expects a use of a barrier once.",
    "derive/expect-without-copies": "An expect announces the bytes that the same role's copies signal on that use.",
    "derive/unexpected-bytes": "Bytes are expected by the role that issues the "
    "copies, on the barrier of the CTA that receives them.",
    "derive/unequal-bytes": "One expect announces one number of bytes, the same for every use it serves.",
    "derive/asserted-bytes": "`bytes=` states what the copies of a use add up to.",
    "derive/data-dependent": "How often barriers are used follows from extents "
    "and integer inputs, not from computed values.",
    "derive/named-ids": "Ids 1 to 15 serve named barriers, sync(ROLE) and one per instance for sync(warpgroup).",
    "derive/named-index": "The index of a named barrier lies between 0 and the declared number.",
    "derive/overlay-too-large": "An overlay fits into the buffer it lies over.",
    "derive/overlay-alignment": "A swizzled tile starts at a multiple of its swizzle period.",
    "sync/endless-loop": "Every loop comes to its end: the condition of a `while` becomes false, the step of a `range` is positive.",
    "sync/phase-drift": "Use numbers that restart agree with the phase the barrier slot is really in.",
}


def contract(rule: str) -> str:
    """The contract of a rule of `derive`. Raises KeyError for an id that is not in the table."""
    return CONTRACTS[rule]
