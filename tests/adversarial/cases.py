"""The table of cheats: what each does, and the verdict and cause that must meet it. One row serves CPU, GPU and the docs.

A row runs as a job of the worker, once per contract: the CUDA fixture on a GPU, the body of the same name on the machine of
`machine.py`. Rows that Cake IR can say also have programs (`programs.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from corpus.contract import Shape

GEMM, KMEANS, RMS, SOFTMAX = "gemm_bf16", "kmeans_assign", "rmsnorm", "softmax"
ALL = (GEMM, KMEANS, RMS, SOFTMAX)
FLOATS = (GEMM, RMS, SOFTMAX)
WRONG = "wrong"
"""Stands for what a contract calls a wrong value: `label` for k-means, else `mismatch`."""
UNDONE = (WRONG, "nonfinite", "unwritten")
"""What poison looks like, once it is compared with the oracle."""
FINE = ("measured", "faster", "slower", "inconclusive")
"""Verdicts of a bench that hold nothing against the kernel."""

SMALL: dict[str, Shape] = {
    GEMM: {"M": 512, "N": 512, "K": 512},
    KMEANS: {"B": 1, "N": 4096, "C": 256, "D": 64},
    RMS: {"M": 64, "D": 512},
    SOFTMAX: {"M": 64, "N": 512},
}
"""Timed on a GPU: far above the physical floor even for a launch that does nothing."""
LARGE: dict[str, Shape] = {
    GEMM: {"M": 1536, "N": 1536, "K": 16384},
    KMEANS: {"B": 1, "N": 131072, "C": 2048, "D": 128},
}
"""Timed on a GPU: hashing the inputs and copying the result takes less than half of the floor (72 and 64 µs on an H200)."""


@dataclass(frozen=True)
class Cheat:
    """One row.

    verdict: of the failing case of a check, of the shape of a bench, or `error` for the worker itself; a check that is
    passed has `passed`, `ok`. causes: any of them; empty: not looked at. says: what the message must hold, in this order.
    torch: contracts on which a GPU job also compares on the device, as production does; without torch a worker starts faster.
    cpu: whether a body exists. refused: a second launch follows that no device admits. job: further fields of the job.
    """

    name: str
    does: str
    gate: str
    verdict: str
    causes: tuple[str, ...] = ()
    contracts: tuple[str, ...] = ALL
    kind: Literal["check", "bench"] = "check"
    says: tuple[str, ...] = ()
    fixture: str = ""
    shapes: Mapping[str, Shape] = field(default_factory=lambda: SMALL)
    cpu: bool = True
    refused: bool = False
    torch: tuple[str, ...] = ()
    job: Mapping[str, Any] = field(default_factory=dict)

    @property
    def source(self) -> str:
        """The stem of the fixture and the name of the body."""
        return self.fixture or self.name

    @property
    def on_gpu(self) -> tuple[tuple[str, bool], ...]:
        """(contract, whether torch compares on the device) of the jobs for a GPU. Timings, which run one by one, take two
        contracts; large shapes would take the host too long."""
        names = [c for c in self.contracts if self.kind == "check" or c in (GEMM, KMEANS)]
        if self.shapes is LARGE:
            return tuple((n, True) for n in names)
        return (*((n, False) for n in names), *((n, True) for n in self.torch))

    @property
    def honest(self) -> bool:
        """Whether the kernel is a control, which nothing may be held against."""
        return self.verdict in ("passed", *FINE)

    def caught(self, contract: str, verdict: str, cause: str, message: str) -> bool:
        """Whether an outcome is the expected one; `measured` stands for any verdict that holds nothing against a kernel."""
        wanted = FINE if self.verdict == "measured" else (self.verdict,)
        if verdict not in wanted:
            return False
        word = "label" if contract == KMEANS else "mismatch"
        causes = [word if c == WRONG else c for c in self.causes]
        said = re.search(".*".join(map(re.escape, self.says)), message, re.DOTALL)
        return (not causes or cause in causes) and bool(said)


OUTPUT, REPEAT, INPUT, BAND = "comparison with the oracle", "bitwise repeats", "inputs compared", "guard bands"
SOAK = "thousands of launches back to back"
POISON, LAUNCH, WATCH = "two poison patterns", "launch and sticky errors", "watchdog"
AFTER, CHANGED, FLOOR, HISTORY = (
    "outputs of the timed launches",
    "changed input bytes",
    "physical floor",
    "fresh bytes against repeats",
)

CHEATS: tuple[Cheat, ...] = (
    Cheat("writes_nothing", "returns at once", POISON, "failed", ("unwritten",), torch=(GEMM, KMEANS)),
    Cheat("first_tile_only", "writes the first 64 elements", POISON, "failed", ("unwritten",), torch=(GEMM,)),
    Cheat("skips_some", "leaves out one element in 97", POISON, "failed", ("unwritten",)),
    Cheat("zeros", "writes zeros", OUTPUT, "failed", (WRONG,)),
    Cheat("copies_input", "copies the first input to the output", OUTPUT, "failed", (WRONG,)),
    Cheat("ignores_an_operand", "never reads its last operand", OUTPUT, "failed", (WRONG,), (GEMM, KMEANS, RMS)),
    Cheat("skips_all_products", "skips every matrix product", OUTPUT, "failed", (WRONG,), (GEMM, KMEANS), torch=(KMEANS,)),
    Cheat("skips_the_tail", "reduces in steps of 64 and forgets the rest", OUTPUT, "failed", (WRONG,), (GEMM, KMEANS)),
    Cheat("off_by_one", "every element is its neighbour's", OUTPUT, "failed", (WRONG,)),
    Cheat("next_label", "the next index instead of the nearest", OUTPUT, "failed", ("label",), (KMEANS,)),
    Cheat("swaps_rows", "swaps neighbouring rows", OUTPUT, "failed", (WRONG,)),
    Cheat("transposes_squares", "transposes the result where it is square", OUTPUT, "failed", (WRONG,), (GEMM, SOFTMAX)),
    Cheat("wrong_at_one_shape", "the last element is wrong, at one ragged shape only", OUTPUT, "failed", (WRONG,), says=("1 of ",)),
    Cheat("nan_where_masked", "NaN for rows that are masked everywhere", OUTPUT, "failed", ("nonfinite",), (SOFTMAX,), says=("got nan",)),
    Cheat("nan_to_zero", "zero where the contract says that NaN propagates", OUTPUT, "failed", (WRONG,), (GEMM,), says=("nan, got 0",)),
    Cheat("clamps_infinity", "the largest finite number where the contract says infinity", OUTPUT, "failed", (WRONG,), (GEMM,),
          says=("inf, got", "3.3")),
    Cheat("bf16_accumulation", "rounds partial sums (k-means: scores) to bf16", OUTPUT, "failed", (WRONG, "rms"), torch=(KMEANS,)),
    Cheat("f16_accumulation", "rounds partial sums to f16", OUTPUT, "failed", (WRONG, "rms", "nonfinite"), (GEMM,), cpu=False),
    Cheat("reads_output", "is right only over the first poison pattern", REPEAT, "failed", ("repeat",)),
    Cheat("leaves_what_it_likes", "writes some elements only over one poison pattern", OUTPUT, "failed", (WRONG,)),
    Cheat("first_call_only", "works in its first launch only (state in a device global)", REPEAT, "failed", ("repeat",)),
    Cheat("right_for_a_while", "one element is wrong from the fifth launch on", REPEAT, "failed", ("repeat",)),
    Cheat("sparse_race", "one element in some ten thousand is off by its last bit, as the clock has it", REPEAT, "failed",
          ("repeat", "mismatch"), FLOATS, torch=(GEMM,)),
    Cheat("flaky", "one launch in four has one wrong element", REPEAT, "failed", ("repeat", WRONG)),
    Cheat("rare", "one launch in two hundred has one wrong element", SOAK, "failed", ("repeat",),
          says=("launches back to back gave another",),
          job={"distributions": ("normal",)}),
    Cheat("mutates_input", "flips a bit of an input", INPUT, "failed", ("input-changed",), torch=(KMEANS,)),
    Cheat("mutates_and_restores", "flips a bit of another input byte each launch and restores the last", INPUT, "failed",
          ("input-changed",)),
    Cheat("past_the_end", "writes one element behind the output", BAND, "failed", ("out-of-bounds",), torch=(GEMM,),
          says=("behind its end",)),
    Cheat("row_past_the_end", "writes a row behind the output", BAND, "failed", ("out-of-bounds",), FLOATS, says=("behind its end",)),
    Cheat("before_the_start", "writes one element before the output", BAND, "failed", ("out-of-bounds",), says=("before its start",)),
    Cheat("past_an_input", "writes one element behind an input", BAND, "failed", ("out-of-bounds",), cpu=False, says=("behind its end",)),
    Cheat("asks_for_too_much", "a right launch, then one with more shared memory than there is: stale success", LAUNCH, "error",
          ("lowering/launch-refused",), fixture="right", refused=True, says=("shared memory",)),
    Cheat("faults", "writes the right result, then to address 16", LAUNCH, "error", ("lowering/device-fault",), (GEMM, KMEANS), cpu=False,
          says=("ILLEGAL_ADDRESS",)),
    Cheat("spins", "writes the right result and never ends", WATCH, "error", ("worker/hung",), (GEMM, KMEANS), cpu=False,
          job={"launch_timeout_s": 3.0}, says=("did not end",)),
    Cheat("wakes_for_the_timing", "writes nothing while it is checked", "check before timing", "incorrect", ("unwritten",), kind="bench",
          says=("before timing",)),
    Cheat("stops_after_the_check", "returns at once after two launches", AFTER, "incorrect", UNDONE, kind="bench",
          says=("after timing",)),
    Cheat("hundredth_of_the_work", "a hundredth of the work once it is timed", AFTER, "incorrect", UNDONE, kind="bench",
          says=("after timing",)),
    Cheat("decays", "one element goes wrong after 40 launches", AFTER, "incorrect", (WRONG,), kind="bench", says=("after timing",)),
    Cheat("past_the_end_when_timed", "writes behind the output from the fifth launch on", AFTER, "incorrect", ("out-of-bounds",),
          kind="bench", says=("after timing",)),
    Cheat("mutates_input_when_timed", "changes last bits of an input from the fifth launch on", AFTER, "incorrect",
          ("input-changed",), (KMEANS, SOFTMAX), kind="bench", says=("after timing",)),
    Cheat("stale_by_pointer", "keeps its results under the input's address", CHANGED, "incorrect", (WRONG,), kind="bench",
          says=("on changed inputs",)),
    Cheat("stale_by_bytes", "keeps its results under a hash of the inputs' bytes", HISTORY, "invalid", kind="bench",
          says=("fresh input bytes",)),
    Cheat("works_once", "does nothing over an output that is written already", CHANGED, "incorrect", (WRONG,), kind="bench",
          says=("on changed inputs",)),
    Cheat("too_fast", "the same as stale_by_bytes, at a size whose floor is above a copy: both are said, the floor first", FLOOR,
          "invalid",
          (), (GEMM, KMEANS), "bench", ("below its physical floor", "fresh input bytes"), "stale_by_bytes", LARGE),
    Cheat("spins_when_timed", "never ends after 40 launches", WATCH, "error", ("worker/hung",), (GEMM,), kind="bench", cpu=False,
          job={"launch_timeout_s": 3.0}, says=("did not end", "timing")),
    Cheat("stale_success", "a right launch, then a refused one, timed", LAUNCH, "error", (), (GEMM, SOFTMAX), "bench",
          ("launch-refused", "shared memory"),
          "right", refused=True),
)  # fmt: skip
"""What must be caught."""

CONTROLS: tuple[Cheat, ...] = (
    Cheat("right", "computes the contract", "none", "passed", ("ok",), torch=(GEMM, KMEANS)),
    Cheat("last_of_ties", "takes the last of equally near centroids, which the contract allows", "none", "passed", ("ok",), (KMEANS,)),
    Cheat("right_timed", "computes the contract", "none", "measured", kind="bench", fixture="right"),
    Cheat("twice_the_work", "does everything twice: slow, not wrong", "none", "measured", kind="bench"),
)  # fmt: skip
"""What nothing may be held against."""

ROWS = (*CHEATS, *CONTROLS)


def row(name: str) -> Cheat:
    """The row of that name; raises KeyError."""
    return {c.name: c for c in ROWS}[name]


def outcome(answer: Mapping[str, Any]) -> tuple[str, str, str]:
    """(verdict, cause, message) of a worker's answer, `{"result": ...}` or `{"error": ...}`, in the words of the table."""
    if "error" in answer:
        return "error", str(answer["error"].get("code")), str(answer["error"].get("message"))
    result = answer["result"]
    if "shapes" not in result:
        bad = next((c for c in result["cases"] if c["verdict"] in ("failed", "error")), None)
        if bad is None:
            return ("passed", "ok", result["summary"]) if result["passed"] else ("skipped", "", result["summary"])
        return bad["verdict"], bad["cause"], bad["message"]
    shape = result["shapes"][0]
    checks = shape.get("checks", [])
    cause = next((c["cause"] for c in reversed(checks) if c["verdict"] == "failed"), "")
    return shape["verdict"], cause, shape["message"]
