"""Taking in a bundle: an honest one becomes rows; one that was changed in any way that can be recomputed is refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from corpus import bundle, evidence, intake
from corpus.jobs import Job
from corpus.kernels import kernel
from tests import compiled
from tests.corpus.test_bundle import pack, unpack


@pytest.fixture
def taken(real_bundle: Path, tmp_path: Path) -> Callable[..., intake.Intake]:
    """Judge a bundle, changed or not, against an empty directory."""

    def judge(change: Callable[[dict[str, Any]], None] | None = None, into: Path = tmp_path) -> intake.Intake:
        path = real_bundle if change is None else forged(real_bundle, tmp_path / "forged.zip", change)
        return intake.judge(bundle.read(path), into, cache_dir=compiled.cubins())

    return judge


def forged(source: Path, out: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """A bundle whose JSON was changed by `change` (name -> object; bytes for cubins), with hashes that fit again."""
    files: dict[str, Any] = {n: d if n.endswith(".cubin") else json.loads(d) for n, d in unpack(source).items()}
    change(files)
    manifest = files.pop("manifest.json")
    raw = {n: d if isinstance(d, bytes) else json.dumps(d).encode() for n, d in files.items()}
    manifest["files"] = {n: hashlib.sha256(d).hexdigest() for n, d in raw.items()}
    return pack(out, {"manifest.json": json.dumps(manifest).encode(), **raw})


def words(found: intake.Intake) -> list[tuple[str, str]]:
    return [(line.action, line.why) for line in found.lines]


def test_an_honest_bundle_becomes_rows(taken: Callable[..., intake.Intake], tmp_path: Path, real_bundle: Path) -> None:
    found = taken()
    assert (
        words(found) == [("added", ""), ("added", "")] and not found.refused
    )  # the machine code was built again, and is equal
    paths = intake.write(found, tmp_path)
    assert {p.name for p in paths} == {"rmsnorm.json", "checks.json"}
    (row,) = evidence.results(tmp_path)
    assert row.device == "Test H200" and row.stale is None and row.verdict == "faster" and len(row.samples_us) == 12
    assert row.cubin_sha256 in bundle.read(real_bundle).cubins and row.evidence.command == "cake selftest --quick"
    (check,) = evidence.read_checks(tmp_path)
    assert check.passed and check.kernel == "rmsnorm" and check.cases > 20
    again = taken()
    assert [line.action for line in again.lines] == ["replaced", "replaced"]
    intake.write(again, tmp_path)
    assert len(evidence.results(tmp_path)) == 1


def test_newer_rows_and_other_variants_stay(taken: Callable[..., intake.Intake], tmp_path: Path) -> None:
    found = taken()
    (row,) = found.rows["rmsnorm"]
    newer = row.model_copy(update={"evidence": row.evidence.model_copy(update={"date": "2126-01-01T00:00:00+00:00"})})
    tuned = row.model_copy(update={"bindings": {**row.bindings, "WARPS": 8}})
    other = row.model_copy(update={"device": "Other GPU"})
    evidence.write("rmsnorm", [newer, tuned, other], tmp_path)
    late = taken()
    assert [line.action for line in late.lines] == ["added", "kept"] and "rmsnorm" not in late.rows
    evidence.write("rmsnorm", [tuned, other], tmp_path)
    assert [r.device for r in taken().rows["rmsnorm"]] == ["Test H200", "Other GPU", "Test H200"]


def timed(files: dict[str, Any]) -> dict[str, Any]:
    return files["results/rmsnorm-bench.json"]["shapes"][0]


def sample(f: dict[str, Any]) -> None:
    timed(f)["candidate"]["samples_us"][3] = 1.0


def all_samples(f: dict[str, Any]) -> None:
    c = timed(f)["candidate"]
    c["samples_us"] = [v / 2 for v in c["samples_us"]]
    c["median_us"], c["mad_us"] = c["median_us"] / 2, c["mad_us"] / 2


def median(f: dict[str, Any]) -> None:
    timed(f)["candidate"]["median_us"] = 6.0


def ratio(f: dict[str, Any]) -> None:
    timed(f)["baselines"][0]["ratio"] = timed(f)["ratio"] = 9.0


def verdict(f: dict[str, Any]) -> None:
    timed(f)["verdict"] = "inconclusive"


def below_floor(f: dict[str, Any]) -> None:
    timed(f)["floor_us"] = 11.0


def no_checks(f: dict[str, Any]) -> None:
    timed(f)["checks"] = []


def no_baseline(f: dict[str, Any]) -> None:
    timed(f).update(baseline=None, ratio=None, verdict="measured")


def other_rule(f: dict[str, Any]) -> None:
    f["results/rmsnorm-bench.json"]["rule"] = "whatever I like"


def nan(f: dict[str, Any]) -> None:
    timed(f)["candidate"]["samples_us"][0] = -1.0


def batch(f: dict[str, Any]) -> None:
    timed(f)["baselines"][0]["batch"] = 10**400


def spread(f: dict[str, Any]) -> None:
    timed(f)["candidate"]["cv"] = 0.0001


def negative_floor(f: dict[str, Any]) -> None:
    timed(f)["floor_us"] = -5.0


def impossible(f: dict[str, Any]) -> None:
    """Everything follows from the samples, the floor is left out, and no device is that fast."""
    timed(f)["floor_us"] = 0.0
    for t in (timed(f)["candidate"], *timed(f)["baselines"]):
        t["samples_us"] = [v * 2.0**-4 for v in t["samples_us"]]
        t["median_us"], t["mad_us"] = t["median_us"] * 2.0**-4, t["mad_us"] * 2.0**-4
        t["comparison"] = t["comparison"] and "inconclusive"  # a nanosecond is no difference
    timed(f)["verdict"] = "inconclusive"
    f["manifest.json"]["device"]["sm_clock_mhz"] = 10**9


def own_peak(f: dict[str, Any]) -> None:
    f["jobs/rmsnorm-bench.json"]["peak_flops"] = 1e300


def no_date(f: dict[str, Any]) -> None:
    f["manifest.json"]["date"] = "2026-99-99T99:99:99Z"


def far_future(f: dict[str, Any]) -> None:
    f["manifest.json"]["date"] = "9999-12-31T00:00:00Z"


def bloated(f: dict[str, Any]) -> None:
    timed(f)["conditions"] = {"notes": ["x" * 100_000]}


def nameless(f: dict[str, Any]) -> None:
    f["manifest.json"]["device"]["name"] = "GPU" * 100


def fewer_shapes(f: dict[str, Any]) -> None:
    f["results/rmsnorm-bench.json"]["shapes"] = []


def hidden_case(f: dict[str, Any]) -> None:
    f["results/rmsnorm-check.json"]["cases"].pop()


def failed_case(f: dict[str, Any]) -> None:
    f["results/rmsnorm-check.json"]["cases"][0].update(verdict="failed", message="all wrong")


def wrong_case(f: dict[str, Any]) -> None:
    f["results/rmsnorm-check.json"]["cases"][0].update(bad=7, excess=3.0)


def on_cpu(f: dict[str, Any]) -> None:
    f["results/rmsnorm-check.json"]["on"] = "cpu"


def outcome(f: dict[str, Any]) -> None:
    f["results/rmsnorm-check.json"]["passed"] = False


def job_field(**change: Any) -> Callable[[dict[str, Any]], None]:
    def apply(f: dict[str, Any]) -> None:
        for kind in ("check", "bench"):
            f[f"jobs/rmsnorm-{kind}.json"].update(change)

    return apply


def bindings(f: dict[str, Any]) -> None:
    for kind in ("check", "bench"):
        f[f"jobs/rmsnorm-{kind}.json"]["bindings"]["WARPS"] = 8


def grid(f: dict[str, Any]) -> None:
    f["jobs/rmsnorm-bench.json"]["launches"][0]["plans"][0]["grid"] += 1


def fewer_launches(f: dict[str, Any]) -> None:
    f["jobs/rmsnorm-check.json"]["launches"].pop()


def other_code(f: dict[str, Any]) -> None:
    """Machine code that no compiler made, consistently named everywhere."""
    old = next(n for n in f if n.startswith("cubins/"))
    code = f.pop(old) + b"\0"
    name = hashlib.sha256(code).hexdigest()
    f[f"cubins/{name}.cubin"] = code
    for kind in ("check", "bench"):
        for launch in f[f"jobs/rmsnorm-{kind}.json"]["launches"]:
            for plan in launch["plans"]:
                plan["cubin_sha256"] = name


def no_code(f: dict[str, Any]) -> None:
    f.pop(next(n for n in f if n.startswith("cubins/")))


def device(f: dict[str, Any]) -> None:
    f["manifest.json"]["device"]["name"] = "NVIDIA B200"


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        (sample, "bench", "median or spread of candidate do not follow"),
        (all_samples, "bench", "ratio over torch_rms_norm does not follow"),
        (median, "bench", "median or spread of candidate do not follow"),
        (ratio, "bench", "ratio over torch_rms_norm does not follow"),
        (verdict, "bench", "called inconclusive, the samples say faster"),
        (below_floor, "bench", "below the physical floor of 11 us"),
        (no_checks, "bench", "its results were not checked"),
        (no_baseline, "bench", "compared with nothing; the fastest baseline is torch_rms_norm"),
        (other_rule, "bench", "judged by another rule"),
        (nan, "bench", "no plausible samples"),
        (batch, "bench", "no plausible batch"),
        (spread, "bench", "median or spread of candidate do not follow"),
        (negative_floor, "bench", "the physical floor is no time"),
        (impossible, "bench", "that the device needs for its FLOP"),
        (own_peak, "bench", "physical limits of its own"),
        (no_date, "both", "no date of a past run"),
        (far_future, "both", "no date of a past run"),
        (bloated, "bench", "a row would be larger than 64 kB"),
        (nameless, "both", "does not name the device"),
        (fewer_shapes, "bench", "timed shapes and modes are not those of the job"),
        (grid, "bench", "launches are not those that this version plans"),
        (device, "bench", "name different devices"),
        (hidden_case, "check", "cases were asked for"),
        (failed_case, "check", "verdict does not follow from the cases"),
        (wrong_case, "check", "called passed with elements out of tolerance"),
        (on_cpu, "check", "not run on a GPU"),
        (outcome, "check", "disagree on the outcome"),
        (fewer_launches, "check", "launches are not those that this version plans"),
        (job_field(contract_digest="ct_0"), "both", "the job was judged by 'ct_0'"),
        (job_field(contract="softmax"), "both", "belongs to contract rmsnorm"),
        (job_field(content_id="ir_0"), "both", "the kernel differs"),
        (job_field(variant_id="v_0"), "both", "the variant id does not name"),
        (job_field(kernel="mine"), "both", "the corpus has no kernel 'mine'"),
        (job_field(target="sm_89"), "both", "name different kernels, kinds or targets"),
        (job_field(bindings={"WARPS": [1]}), "both", "no plain values"),
        (job_field(bindings={"WARPS": 3}), "both", "does not bind"),
        (bindings, "both", "the variant id does not name"),
        (other_code, "both", "builds cubin"),
        (no_code, "both", "the bundle lacks cubin"),
    ],
)
def test_a_lie_is_refused_and_nothing_of_it_is_taken(
    taken: Callable[..., intake.Intake], change: Callable[[dict[str, Any]], None], kind: str, text: str
) -> None:
    found = taken(change)
    check, bench = words(found)
    for name, (action, why) in (("check", check), ("bench", bench)):
        if kind in (name, "both"):
            assert action == "refused" and text in why, why
        else:
            assert action == "added"
    assert bool(found.checks) == (kind == "bench") and bool(found.rows) == (kind == "check")


def test_another_compiler_is_said(taken: Callable[..., intake.Intake]) -> None:
    found = taken(job_field(compiler="NVRTC 12.9"))
    assert [a for a, _ in words(found)] == ["added", "added"]
    assert all("compiler differs (NVRTC 12.9 there" in why for _, why in words(found))


def test_jobs_without_a_result_are_listed(taken: Callable[..., intake.Intake]) -> None:
    def hung(f: dict[str, Any]) -> None:
        f.pop("results/rmsnorm-bench.json")
        f["manifest.json"]["entries"][1].update(status="error", code="worker/hung", message="rmsnorm did not end")

    found = taken(hung)
    assert words(found) == [("added", ""), ("no result", "worker/hung: rmsnorm did not end")] and not found.rows


def test_a_job_of_a_bundle_carries_no_path(real_bundle: Path, tmp_path: Path) -> None:
    from cake_ir.diagnostics import CakeError

    def path(f: dict[str, Any]) -> None:
        f["jobs/rmsnorm-check.json"]["contracts_dir"] = "/home/me"

    with pytest.raises(CakeError, match="bundle/unsafe"):
        bundle.read(forged(real_bundle, tmp_path / "p.zip", path))
    job = Job.model_validate_json(unpack(real_bundle)["jobs/rmsnorm-check.json"])
    assert job.kernel == kernel("rmsnorm").name and not job.cubin_paths
