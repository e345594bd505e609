"""Wall times of contenders: what is compared with what, and what a wrong result does. The clock is played."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from corpus.speed import timing
from corpus.speed.timing import OURS, Contender


class Played:
    """A clock that the contenders move, and a device that is done `late` µs after the last call."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, late: float = 0.0) -> None:
        self.now, self.late, self.pending, self.order = 0.0, late, False, []
        monkeypatch.setattr(timing.time, "perf_counter", lambda: self.now * 1e-6)
        self.env: Any = SimpleNamespace(sync=self.sync, stream=7)

    def sync(self) -> None:
        self.now += self.late if self.pending else 0.0
        self.pending = False

    def contender(self, name: str, us: float, **more: Any) -> Contender:
        def run(stream: int) -> None:
            assert stream == 7
            self.order.append(name)
            self.pending = True
            self.now += us

        return Contender(name, run, **more)


def test_ratios_are_peer_over_ours_and_peers_are_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Played(monkeypatch)
    peers = [gpu.contender("slow", 30.0), gpu.contender("quick", 5.0)]
    row = timing.wall_row(gpu.env, {"N": 1}, gpu.contender(OURS, 10.0), peers, calls=4)
    assert row.ours is not None and row.ours.us == pytest.approx(10.0)
    assert [(t.name, pytest.approx(t.ratio), t.verdict) for t in row.against] == [
        ("quick", 0.5, "slower"),
        ("slow", 3.0, "faster"),
    ]
    assert len(row.ours.samples_us) == 21 and row.ours.batch == 4


def test_every_round_times_everybody_forward_and_backward_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Played(monkeypatch)
    timing.wall_row(gpu.env, {"N": 1}, gpu.contender(OURS, 1.0), [gpu.contender("a", 1.0)], calls=1, rounds=2)
    rounds = [tuple(gpu.order[i : i + 2]) for i in range(0, len(gpu.order), 2)]
    assert rounds == [("a", OURS), (OURS, "a"), ("a", OURS), (OURS, "a"), ("a", OURS)]


@pytest.mark.parametrize(("wait", "us"), [(True, 11.0), (False, 1.0)])
def test_the_device_counts_only_where_it_is_waited_for(monkeypatch: pytest.MonkeyPatch, wait: bool, us: float) -> None:
    gpu = Played(monkeypatch, late=100.0)
    row = timing.wall_row(gpu.env, {"N": 1}, gpu.contender(OURS, 1.0), [], calls=10, wait=wait)
    assert row.ours is not None and row.ours.us == pytest.approx(us)


def test_a_wrong_result_of_ours_voids_the_row_and_one_of_a_peer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Played(monkeypatch)
    wrong = {"ok": False, "wrong": 3}
    good = {"ok": True, "wrong": 0}
    ours = gpu.contender(OURS, 1.0, check=lambda: wrong)
    row = timing.wall_row(gpu.env, {"N": 1}, ours, [gpu.contender("a", 1.0, check=lambda: good)], calls=1)
    assert "outputs are wrong" in row.faults[0] and not row.counts()
    row = timing.wall_row(
        gpu.env,
        {"N": 1},
        gpu.contender(OURS, 1.0, check=lambda: good),
        [gpu.contender("a", 1.0, check=lambda: wrong)],
        calls=1,
    )
    assert row.counts() and row.against[0].checked == wrong


def test_a_shape_that_is_not_served_is_still_timed_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Played(monkeypatch)
    row = timing.wall_row(gpu.env, {"N": 1}, "D is too wide", [gpu.contender("a", 2.0)], calls=1)
    assert row.ours is None and row.refused == "D is too wide" and not row.counts()
    assert row.against[0].us == pytest.approx(2.0) and row.against[0].ratio is None
