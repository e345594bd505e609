"""Registers sent to a peer: the order reading against single edits of a program that is right."""

from __future__ import annotations

import pytest

from analyses import verify
from cake_ir import bind, parse
from tests.lowering.test_emit_build import SEND


def rules(text: str) -> list[str]:
    parsed = parse(text)
    assert parsed.file is not None
    done = bind(parsed.file)
    assert done.bound is not None, [d.render() for d in done.diagnostics]
    return [d.rule for d in verify(done.bound).diagnostics if d.severity == "error"]


@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        ("", "", None),
        ("            wait(full[0])\n", "", "data/read-before-arrival"),
        ("expect(full[0])", "arrive(full[0])", "derive/unexpected-bytes"),
        ("32 * cluster_rank, 32).on(0)", "0, 32).on(0)", "data/write-into-flight"),
        (", signal=full[0].on(0)", ", signal=full[1].on(0)", "derive/expect-without-copies"),
    ],
)
def test_single_edits(old: str, new: str, rule: str | None) -> None:
    text = SEND.replace("LAYOUT", "1")
    assert old in text
    assert rules(text.replace(old, new)) == ([] if rule is None else [rule])
