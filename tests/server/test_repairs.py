"""A scripted client that only reads tool answers repairs ten planted faults."""

from __future__ import annotations

import pytest
from mcp import Client

from server.mcp_server import CakeServer
from tests.server.repairs import FAULTS, MAX_TRIES, Fault, repair

pytestmark = pytest.mark.anyio


def test_there_are_ten_different_faults() -> None:
    assert len({f.name for f in FAULTS}) == len(FAULTS) >= 10


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name)
async def test_a_planted_fault_is_repaired_from_answers_alone(cake: CakeServer, fault: Fault) -> None:
    async with Client(cake.build()) as client:
        got = await repair(client, fault)
    assert got.rules, "the fault must be found"
    assert got.accepted and 1 <= got.tries <= MAX_TRIES, got
    assert got.bytes < 12_000, got
