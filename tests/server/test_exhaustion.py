"""Programs built to exhaust the verifier, through the server's verify: an answer in words, within bounded work, repairs included."""

from __future__ import annotations

import pytest

from cake_ir.effort import spent
from server.engine import Engine
from server.programs import Ref
from tests.analyses.hostile import FAMILIES
from tests.analyses.test_exhaustion import REFUSED, WITH_FIXES


@pytest.mark.parametrize(
    "family",
    ["huge trip count", "nest of 20 loops", "squaring in a loop", "200 roles", "a million instances", "2000 barriers"],
)
def test_verify_answers(engine: Engine, family: str) -> None:
    before = spent()
    got = engine.verify(Ref(text=FAMILIES[family]()))
    assert spent() - before < WITH_FIXES
    assert got.status == "rejected" and got.exit_code == 1
    rule = REFUSED.get(family, "derive/no-witness")
    assert rule in [d.rule for d in got.diagnostics]
