"""The collector's thresholds while something is verified, and behind it."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from cake_ir.collector import YOUNG, seldom_collected


@pytest.fixture(autouse=True)
def usual() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


@seldom_collected
def inner() -> int:
    return gc.get_threshold()[0]


@seldom_collected
def outer(fault: bool = False) -> tuple[int, int]:
    if fault:
        raise ValueError
    return inner(), gc.get_threshold()[0]


def test_thresholds_are_raised_to_the_end_of_the_outermost_call_and_then_restored() -> None:
    assert outer() == (YOUNG, YOUNG)
    assert gc.get_threshold() == (700, 10, 10)


def test_thresholds_are_restored_behind_a_fault() -> None:
    with pytest.raises(ValueError):
        outer(fault=True)
    assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize("own", [0, 10 * YOUNG])
def test_a_process_that_collects_still_less_often_is_left_alone(own: int) -> None:
    gc.set_threshold(own, 10, 10)
    assert inner() == own
