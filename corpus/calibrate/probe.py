"""One rate, the run that measures it, and how the rate follows from it.

A probe runs one kernel with two trip counts; the slope of time over trips is free of launch, set-up and drain. `amount` says how much
of the measured thing one trip does; `form` turns the slope into the rate:

| form | value | unit |
| --- | --- | --- |
| per_clk | amount / clocks of a trip | amount per clock and SM |
| per_s | amount x CTAs / seconds of a trip | amount per second, whole device |
| clk | clocks of a trip / amount | clocks |
| us | microseconds of a trip / amount | microseconds |
| count | amount x clusters that the driver says are resident at once | as it says |

Clocks are microseconds times the SM clock that the device itself counted meanwhile (an instrumented empty kernel before and after each
run reads its cycle counter and its timer): what NVML shows lags by a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Form = Literal["per_clk", "per_s", "clk", "us", "count"]
Mode = Literal["trips", "launches", "sustained", "settling", "residency"]
SMS = "sms"
"""As a dimension or trip count: the number of SMs of the device; `4 * sms` as ("sms", 4)."""
Size = int | str | tuple[str, int]

CLOCKS = 1_200_000
"""Length of the longer run in SM clocks (0.6 ms at 1.98 GHz): a thousand steps of the event clock, and too short for a power cap."""
SHORTER = 5
"""The shorter run has a fifth of the trips."""
SUSTAINED_MS = 350.0
"""How long a probe of the clock under load runs without a pause."""


@dataclass(frozen=True)
class Probe:
    """One rate and the run that measures it.

    `expect` is the expected length of a trip in clocks (it only sets trip counts, unless `trips` gives them). `trip` names the scalar or
    dimension that holds the trip count. `sass`: mnemonics and how often they stand in the machine code at least, so that a loop that
    the compiler emptied is not measured; `most`: how often at most, so that no more is in flight than it says. `tensor`: FLOP of a trip on
    the tensor cores of an SM, so that a clock under load is known beside their share. `cold`: L2 holds nothing of the inputs before each
    run; `idle`: the device rests before each run, so that its clock does not show what ran before. mode launches: trips are launches in
    one graph; sustained: the longer run again and again; settling: so too, from an idle device on, for `after_ms` milliseconds;
    residency: nothing is timed, the driver is asked.
    """

    rate: str
    file: str
    kernel: str
    amount: float
    unit: str
    form: Form
    expect: float = 0.0
    bindings: Mapping[str, int | str] = field(default_factory=dict)
    dims: Mapping[str, Size] = field(default_factory=dict)
    scalars: Mapping[str, float] = field(default_factory=dict)
    trips: tuple[Size, Size] | None = None
    trip: str = "trips"
    start: tuple[int, int] | None = None
    sass: Mapping[str, int] = field(default_factory=dict)
    most: Mapping[str, int] = field(default_factory=dict)
    tensor: float = 0.0
    after_ms: float = 0.0
    mode: Mode = "trips"
    cold: bool = False
    idle: bool = False
    target: str = "sm_90a"

    def counts(self, sms: int) -> tuple[int, int]:
        """Trip counts of the shorter and the longer run."""
        if self.trips is not None:
            few, many = self.trips
            return size(few, sms), size(many, sms)
        many = max(10, round(CLOCKS / self.expect))
        return max(2, many // SHORTER), many


def size(value: Size, sms: int) -> int:
    """A size with the device's number of SMs put in."""
    if isinstance(value, tuple):
        return value[1] * sms
    return sms if value == SMS else int(value)
