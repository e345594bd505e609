"""Rule ids without a page, each with the reason. Everything else that a layer can emit has one."""

from __future__ import annotations

UNPAGED: dict[str, str] = {
    "language/json": "about the JSON form, which has no text to show",
    "language/shape": "about the JSON form, which has no text to show",
    "language/size": "the rejected program would be a page of more than 256 KiB",
    "language/tokens": "the rejected program would be a page of more than 32768 tokens",
    "language/encoding": "the rejected text is not UTF-8 and cannot stand on a page",
    "language/too-deep": "a safety net behind language/depth that no accepted text reaches",
    "language/kernel-missing": "about the request (which kernel), not about the text",
    "language/unknown-rule": "about the request (which rule page), not about the text",
    "hardware/unknown-fact": "a fault of an analysis that asks for a fact without source, not of the program",
    "hardware/unknown-feature": "a fault of an analysis that asks for a feature nobody declared",
    "hardware/target-lacks-feature": "raised by look-ups of tools; programs get hardware/feature-missing",
    "sync/over-arrival": "a net behind derive/unequal-arrivals and sync/phase-drift, which find the cause first",
    "hardware/tma-dtype": "no memory dtype of fewer than 8 bits can be declared for a tile yet",
}
