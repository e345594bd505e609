"""The decoder: what comes back from a buffer, and what is stored of it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from cake_ir.diagnostics import CakeError
from lowering.timeline import KINDS, Shape, Timeline, chrome_trace, clock_ghz, decode, fit, starts, tracks_of

TABLE = {
    "kernel": "k", "file": "k.cake", "tracks": [["p", 0], ["m", 0]],
    "marks": [
        {"id": 1, "kind": "compute", "role": "p", "line": 3, "end_line": 3, "ops": ["start"]},
        {"id": 2, "kind": "wait", "role": "p", "line": 4, "end_line": 4, "ops": ["wait"], "wait": {"text": "wait(b[n])"}},
        {"id": 3, "kind": "compute", "role": "m", "line": 7, "end_line": 9, "ops": ["wgmma"]},
        {"id": 4, "kind": "store", "role": "m", "line": 10, "end_line": 10, "ops": ["store"]},
    ],
}  # fmt: skip


class Recorder:
    """Writes a buffer as the helpers of `lowering.helpers.timeline` do: cycles of 0.5 ns, SM clocks as they come."""

    def __init__(self, shape: Shape, ghz: float = 2.0) -> None:
        self.shape, self.ghz = shape, ghz
        self.words = np.zeros(shape.nbytes // 8, "<u8")

    def track(
        self,
        cta: int,
        index: int,
        records: list[tuple[int, int]],
        *,
        end: int | None,
        sm: int = 0,
        skew: int = 0,
        loop: int = 1,
    ) -> None:
        """records: (mark, ns); end: ns or None. skew: cycles that this SM's clock is ahead. loop: records between loop heads."""
        s = self.shape
        block = self.words.reshape(-1, s.capacity)[cta // s.stride * s.tracks + index]

        def clock(ns: int) -> int:
            return round(ns * self.ghz) + skew

        block[-3:] = (records[0][1] if index == 0 else 0, clock(records[0][1]), sm | 1 << 32)
        at = 0
        for n, (mark, ns) in enumerate(records + ([(0, end)] if end is not None else [])):
            if n % loop == 0 and at >= s.capacity // 2:
                at = 0
            block[at] = (clock(ns) + (mark << 54)) % (1 << 64)
            at += 1

    def decode(self, **more: Any) -> Timeline:
        return decode(self.words.tobytes(), TABLE, self.shape, **{"ghz": self.ghz, **more})


def test_spans_add_up_to_the_life_of_their_role() -> None:
    r = Recorder(Shape(2, 1, 1, 32))
    r.track(0, 0, [(1, 1_000_000), (2, 1_001_000), (1, 1_004_000)], end=1_010_000)
    r.track(0, 1, [(3, 1_000_000), (4, 1_008_000)], end=1_010_000)
    t = r.decode()
    assert t.kernel_us == 10.0 and t.recorded_ctas == 1 and t.clock_ghz == 2.0
    p, m = t.roles
    assert (p["busy"], p["us"]) == (1.0, {"wait": 3.0, "issue": 0.0, "compute": 7.0, "store": 0.0, "idle": 0.0})
    assert (m["mean_us"], m["us"]["compute"], m["us"]["store"]) == (10.0, 8.0, 2.0)
    assert [(x["line"], x["us"], x["share"]) for x in t.lines] == [
        (7, 8.0, 0.8),
        (3, 7.0, 0.7),
        (4, 3.0, 0.3),
        (10, 2.0, 0.2),
    ]
    assert t.tracks[0]["spans"] == [[1, 0.0, 1.0], [2, 1.0, 4.0], [1, 4.0, 10.0]]


@pytest.mark.parametrize("loop", [1, 3, 5])
@pytest.mark.parametrize("count", [9, 10, 11, 12, 19, 20, 21, 23, 30, 37, 64])
def test_a_ring_keeps_the_latest_records(count: int, loop: int) -> None:
    r = Recorder(Shape(2, 1, 1, 32))
    times = [1000 + 100 * i for i in range(count)]
    r.track(0, 0, [(1 if i == 0 else 2, t) for i, t in enumerate(times)], end=times[-1] + 100, loop=loop)
    (track,) = list(tracks_of(r.words.tobytes(), TABLE, r.shape))
    kept = len(track.clocks)
    assert track.ended and list(track.clocks // 2) == [*times, times[-1] + 100][-kept:], "the newest, without a gap"
    assert kept >= min(count + 1, 16)
    assert (track.dropped == 0) == (kept == count + 1)
    if track.dropped:
        assert track.dropped == count + 1 - kept
        t = r.decode()
        assert t.dropped == track.dropped and t.tracks[0]["spans"][0][2] - t.tracks[0]["spans"][0][1] == pytest.approx(
            0.1
        )


def test_a_hung_track_has_no_end_and_its_last_mark_stands() -> None:
    r = Recorder(Shape(2, 2, 1, 32))
    r.track(0, 0, [(1, 1000), (2, 2000)], end=None)
    r.track(1, 0, [(1 if i == 0 else 2, 1000 + 100 * i) for i in range(40)], end=None, sm=1)
    r.track(1, 1, [(3, 1000)], end=1500, sm=1)
    a, b, c = tracks_of(r.words.tobytes(), TABLE, r.shape)
    assert (a.ended, list(a.ids), a.dropped) == (False, [1, 2], 0)
    assert (b.ended, int(b.ids[-1]), len(b.ids) + b.dropped) == (False, 2, 40)
    assert c.ended and c.last == 3000
    t = r.decode()
    assert t.kernel_us == pytest.approx(3.9) and t.tracks[0]["spans"][-1] == [2, 1.0, 1.0]


def test_clocks_of_a_long_lived_gpu_do_not_reach_into_the_mark() -> None:
    r = Recorder(Shape(2, 1, 1, 32))
    r.track(0, 0, [(1, 1000), (2, 2000)], end=5000, skew=(3 << 54) + 12345)
    (track,) = tracks_of(r.words.tobytes(), TABLE, r.shape)
    assert list(track.ids) == [1, 2, 0] and int(track.clocks[0]) == track.start == 2000 + (3 << 54) + 12345


def test_clocks_of_sms_are_laid_on_one_axis() -> None:
    r = Recorder(Shape(2, 2, 1, 32))
    r.track(0, 0, [(1, 10_000)], end=50_000, sm=0)
    r.track(1, 0, [(1, 20_000)], end=60_000, sm=1, skew=10**13)
    t = r.decode(ghz=2.0)
    assert [x["start_us"] for x in t.tracks] == [0.0, pytest.approx(10.0, abs=0.01)] and t.kernel_us == pytest.approx(
        50, abs=0.01
    )


def test_a_coarse_timer_does_not_shift_sms_that_share_a_clock() -> None:
    """%globaltimer in ticks of 1024 ns, the SM clocks in step: the tracks start where their clocks say."""
    r = Recorder(Shape(2, 3, 1, 32))
    for cta in range(3):
        r.track(cta, 0, [(1, 10_000 + 300 * cta)], end=40_000, sm=cta)
    times = r.words.reshape(-1, r.shape.capacity)[:, -3]
    times -= times % 1024
    assert [x["start_us"] for x in r.decode(ghz=2.0).tracks] == [0.0, 0.3, 0.6]


def test_waves_count_towards_the_slot_they_ran_on() -> None:
    r = Recorder(Shape(2, 4, 1, 32))
    for cta in range(4):  # two slots, two waves of 10 us
        begin = 1000 + cta // 2 * 10_000
        r.track(cta, 0, [(1, begin), (2, begin + 2000)], end=begin + 10_000, sm=cta % 2)
    t = r.decode()
    assert t.slots == 2 and t.kernel_us == 20.0
    assert t.roles[0]["us"] == {"wait": 16.0, "issue": 0.0, "compute": 4.0, "store": 0.0, "idle": 0.0}
    assert t.roles[0]["busy"] == 1.0


def test_time_without_a_cta_is_idle_and_lost_spans_are_not_covered() -> None:
    r = Recorder(Shape(2, 2, 1, 32))
    r.track(0, 0, [(1, 1000)], end=9000, sm=0)
    r.track(1, 0, [(1, 3000)], end=11_000, sm=1)
    (role,) = r.decode().timed(10.0, 10.2, 10.5).roles
    assert (role["us"]["compute"], role["us"]["idle"], role["busy"]) == (8.0, 2.0, 0.8)
    assert role["covered"] == pytest.approx(10 / 10.5, abs=1e-4)
    r = Recorder(Shape(2, 1, 1, 32))
    r.track(0, 0, [(1 if i == 0 else 2, 1000 + 100 * i) for i in range(100)], end=11_000)
    assert r.decode().roles[0]["covered"] < 0.5


def test_sampled_ctas_are_scaled_up() -> None:
    r = Recorder(Shape(2, 8, 2, 32))
    for cta in (0, 2, 4, 6):
        begin = 1000 + cta // 4 * 10_000
        r.track(cta, 0, [(1, begin)], end=begin + 10_000, sm=cta)
    t = r.decode(slots=4)
    assert t.recorded_ctas == 4 and [x["cta"] for x in t.tracks] == [0, 2, 4, 6]
    assert t.roles[0]["covered"] == 1.0


def test_damaged_and_empty_buffers_are_refused() -> None:
    r = Recorder(Shape(2, 1, 1, 32))
    with pytest.raises(CakeError, match="did not run"):
        r.decode()
    r.track(0, 0, [(9, 1000)], end=2000)
    with pytest.raises(CakeError, match="no mark wrote"):
        r.decode()


def test_the_clock_is_read_off_two_launches_where_one_is_too_short() -> None:
    early, late = Recorder(Shape(2, 1, 1, 32)), Recorder(Shape(2, 1, 1, 32))
    early.track(0, 0, [(1, 1_000_000)], end=1_000_200)
    late.track(0, 0, [(1, 21_000_000)], end=21_000_700)
    late.words[-32 - 3] -= 500  # a tick of the timer
    a, b = (list(tracks_of(x.words.tobytes(), TABLE, x.shape)) for x in (early, late))
    assert clock_ghz(b, a) == pytest.approx(2.0, rel=1e-4)
    with pytest.raises(CakeError, match="how fast"):
        clock_ghz(b)


def test_starts_are_the_first_of_each_sm_without_the_marks() -> None:
    r = Recorder(Shape(2, 3, 1, 32))
    r.track(0, 0, [(1, 4_000)], end=4_200, sm=7, skew=5)
    r.track(0, 1, [(1, 100)], end=200, sm=7)  # no timer but in the first track
    r.track(1, 0, [(1, 3_000)], end=3_200, sm=7, skew=5)
    r.track(2, 0, [(1, 5_000)], end=5_200, sm=8)
    assert starts(r.words.tobytes(), r.shape) == {7: (3_000, 6_005), 8: (5_000, 10_000)}


def test_buffers_fit_their_budget() -> None:
    table = {"tracks": [["a", 0]] * 3, "marks": [], "sites": 20}
    assert fit(table, 132, 64 << 20, 1 << 14) == Shape(3, 132, 1, 1 << 14)
    many = fit(table, 65536, 64 << 20, 1 << 14)
    assert many.nbytes <= 64 << 20 and many.stride == 16 and many.capacity == 512
    assert fit(table, 10**6, 1 << 20, 64).nbytes <= 1 << 20
    assert fit({**table, "sites": 100}, 1, 1, 1).capacity == 256, "the overrun holds every place of a mark once"


def test_the_stored_form_is_small_and_plain() -> None:
    shape = Shape(2, 64, 1, 8192)
    r = Recorder(shape)
    for cta in range(64):
        for index in range(2):
            records = [(2 * index + 1 + i % 2, 1000 + 100 * i + cta) for i in range(4000)]
            r.track(cta, index, records, end=500_000 + cta, sm=cta)
    t = r.decode()
    text = json.dumps(t.to_json())
    assert len(text) < 2 << 20 and json.loads(text)["recorded_ctas"] == 64
    assert {x["cta"] for x in t.tracks} >= {0, 63}, "the first and the last to end are kept"
    assert set(t.to_json()["roles"][0]["us"]) == {*KINDS, "idle"}


def test_one_long_cta_is_cut_to_its_latest_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lowering.timeline.KEPT_SPANS", 20)
    r = Recorder(Shape(2, 1, 1, 512))
    r.track(0, 0, [(1 + i % 2, 1000 + 100 * i) for i in range(200)], end=30_000)
    (track,) = r.decode().tracks
    assert len(track["spans"]) == 20 and track["dropped"] == 180 and track["spans"][-1][2] == 29.0


def test_the_chrome_trace() -> None:
    r = Recorder(Shape(2, 2, 1, 32))
    r.track(0, 0, [(1, 1000), (2, 2000)], end=5000, sm=3)
    r.track(0, 1, [(3, 1000)], end=5000, sm=3)
    r.track(1, 0, [(1, 1500)], end=4000, sm=4)
    t = r.decode().timed(3.9, 4.0, 4.1)
    trace = json.loads(json.dumps(chrome_trace(t)))
    assert trace == chrome_trace(t.to_json())
    events = trace["traceEvents"]
    assert {e["ph"] for e in events} == {"X", "M"}
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert names == {(0, 1): "p[0]", (0, 2): "m[0]", (1, 1): "p[0]"}
    assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == {"CTA 0 on SM 3", "CTA 1 on SM 4"}
    spans = [e for e in events if e["ph"] == "X"]
    assert len(spans) == 4 and {(e["pid"], e["tid"]) for e in spans} <= set(names)
    wait = next(e for e in spans if e["cat"] == "wait")
    assert (wait["name"], wait["ts"], wait["dur"], wait["args"]["line"]) == ("4: wait", 1.0, 3.0, 4)
    assert trace["otherData"]["overhead"] == pytest.approx(4.0 / 3.9 - 1, abs=1e-4)
