"""What README.md and docs/measuring.md say was measured is what the files under corpus/results/ hold."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "corpus" / "results"
NAMES = {"torch_matmul": "cuBLAS", "device_copy": "device copy", "torch_rms_norm": "torch",
         "torch_softmax": "torch", "flash_kmeans": "flash-kmeans", "flashlib_triton": "FlashLib Triton"}  # fmt: skip


def read(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def says(*phrases: str) -> None:
    """Each phrase stands in docs/measuring.md, wherever its lines break."""
    page = " ".join((ROOT / "docs" / "measuring.md").read_text(encoding="utf-8").split())
    for phrase in phrases:
        assert phrase in page, f"docs/measuring.md should say: {phrase}"


def test_aa() -> None:
    summary = read("aa.json")["summary"]
    high = summary["rate_interval"][1]
    says(f"{summary['false_positives']} of {summary['valid']} pairs different, 95 % bound {100 * high:.2f} %")
    power = summary["power"]
    says(f"{power['found']} of {power['pairs']} known differences found, ratios {power['ratio_min']:.3f} and more")
    for mode in ("cold", "warm"):
        part = summary[mode]
        cv = (f"{100 * part[key]:.2f} %" for key in ("cv_median", "cv_p90", "cv_max"))
        says(f"| {mode} | {part['pairs']} | {' | '.join(cv)} |")


def test_pairs_that_the_smallest_difference_keeps_inconclusive() -> None:
    pairs = [p for p in read("aa.json")["pairs"] if not p["power"]]
    apart = [p for p in pairs if (p["interval"][0] > 1.005 or p["interval"][1] < 0.995) and abs(p["ratio"] - 1) > 0.01]
    most = max(abs(a - b) for a, b in (p["us"] for p in apart))
    assert max(p["us"][0] for p in apart) < 6
    says(f"{len(apart)} pairs differ by more than 1 %", f"(kernels under 6 µs, by at most {most:.3f} µs)")


def test_adversarial() -> None:
    totals = read("adversarial.json")["totals"]
    says(f"{totals['caught']} of {totals['cheat_jobs']} jobs of {totals['cheats']} cheats caught")
    assert totals["controls_flagged"] == 0 == totals["passed_the_gates"]
    says(f"{totals['controls']} controls, none flagged")


def test_isolation() -> None:
    file = read("isolation.json")
    kernels, codes = file["kernels"], file["codes"]
    hung, faulted = codes["worker/hung"], codes["lowering/device-fault"]
    says(f"{kernels} kernels, {hung} hung, {faulted} faulted, {kernels - hung - faulted} were refused")
    says(f"after {file['longest_answer_s']} s at the latest")
    assert kernels == file["in_time"] == file["gpu_answers"] == file["right_after"] == file["store_whole"]
    changed = [r for r in file["rows"] if r["made_of"] == "changed"]
    assert all(r["code"] == "worker/hung" and r["standing"].get("stood") for r in changed)
    assert file["located"] == len(changed) and {r["limit_s"] for r in file["rows"]} == {1.0}
    says(f"All {len(changed)} hung kernels that are changed", f"the other {hung - len(changed)} are CUDA fixtures")
    assert [r["kernels_in_a_row"] for r in file["runs"]] == [kernels, len(file["withdrawn"])] == [59, 2]
    says(f"59 ran in a row, and {file['runs'][0]['as_expected']} of them ended as was expected")


def test_durability() -> None:
    file = read("durability.json")
    forked, servers = (r["kills"] for r in file["runs"])
    says(
        f"Of {file['stored']} records stored before {file['kills']} kills ({forked} of forked writers, {servers} of servers"
    )
    assert file["lost"] == file["half_written"] == file["left_behind"] == 0
    says(f"{file['unfinished']} files were met while they were written")


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("gemm_sm90", "`gemm_sm90`, 4096^3"),
        ("kmeans_assign_262144x4096", "`kmeans_assign`, N262144 K4096 D128"),
        ("kmeans_assign_32x65536x1024", "`kmeans_assign`, B32 N65536 K1024 D128"),
    ],
)
def test_profiles(name: str, title: str) -> None:
    file = read(f"profiles/{name}.json")
    line, shares = file["timeline"], {}
    for role in line["roles"]:
        kinds = [
            f"{100 * role['us'][k] / line['kernel_us']:.0f}" for k in ("wait", "issue", "compute", "store", "idle")
        ]
        shares[role["role"]] = ", ".join(kinds) + " %"
    cost = f"{100 * line['overhead']:.1f} %"
    says(f"| {title} | {file['summary']['bound']} | {cost} | {shares['producer']} | {shares['math']} |")
    assert "under the power cap" in file["summary"]["sentence"]
    assert file["summary"]["basis"] == "counters and timeline"


def test_readme_table() -> None:
    """Every committed warm timing, the losses first, in the words of the README."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = text[text.index("## Measured") : text.index("### Another GPU")]
    shown = [
        tuple(cell.strip() for cell in line.strip("| ").split("|"))
        for line in table.split("\n")
        if line.startswith("| `")
    ]
    rows = [
        row
        for path in sorted(RESULTS.glob("*.json"))
        for row in read(path.name).get("rows", ())
        if {"kernel", "ratio", "baseline", "mode"} <= row.keys() and row["mode"] == "warm"
    ]
    want = sorted((round(r["ratio"], 3), r["kernel"], NAMES[r["baseline"]], r["verdict"]) for r in rows)
    assert [(float(ratio), kernel.strip("`"), base, verdict) for kernel, _, base, ratio, verdict in shown] == want
    (apart,) = (r["ratio_interval"] for r in rows if r["verdict"] == "inconclusive" and r["ratio_interval"][1] < 0.995)
    assert f"is {apart[0]:.3f} to {apart[1]:.3f}: slower than cuBLAS" in table
    sizes = {(r["kernel"], frozenset(r["shape"].values()) - {1}) for r in rows}
    numbers = [re.findall(r"\d{2,}", shape.split(",")[0]) for _, shape, *_ in shown]
    assert {(row[0].strip("`"), frozenset(map(int, n))) for row, n in zip(shown, numbers, strict=True)} == sizes


def test_agreement_with_scikit_learn() -> None:
    file = read("agreement/kmeans.json")
    rows = file["rows"]
    assert {r["name"] for r in rows} == {"iris", "wine", "breast_cancer", "digits"} and len(rows) == 8
    assert file["driver"] and file["compiler"] and file["commit"] and all(r["assign"]["cubin_keys"] for r in rows)
    differ, points = sum(r["differ"] for r in rows), sum(r["points"] for r in rows)
    margin = max(max(r["margin_ours"], r["margin_theirs"]) for r in rows)
    page = " ".join((ROOT / "docs" / "python-api.md").read_text(encoding="utf-8").split())
    assert f"{differ} of {points:,} differ on an H200" in page
    assert f"(within {100 * margin:.1f} % of a tie)" in page and not any(r["not_nearest"] for r in rows)
    assert file["device"] == "NVIDIA H200"


def test_the_speed_that_the_readme_claims() -> None:
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())

    def ratios(name: str, *peers: str) -> list[float]:
        rows = read(f"speed/{name}.json")["rows"]
        return [min(a["ratio"] for a in r["against"] if a["name"] in peers and "ratio" in a) for r in rows]

    triton = ("flash_kmeans", "flashlib_triton")
    contract, large, whole = ratios("contract", *triton), ratios("large", *triton), ratios("iteration", "flashlib_triton")
    mean = math.exp(sum(map(math.log, contract)) / len(contract))
    assert f"is {mean:.2f} times as fast as the better of two Triton kernels over {len(contract)} published shapes" in text
    assert f"never below {min(contract):.2f}, and {min(large):.2f} to {max(large):.2f} times on {len(large)} large ones" in text
    assert f"whole iterations are {min(whole):.2f} to {max(whole):.2f} times FlashLib's" in text
    products = [
        a["ratio"]
        for r in read("speed/gemm.json")["rows"]
        for a in r["against"]
        if (r["layout"] == "TN" and min(r["shape"].values()) not in (512, 1024)) or r["shape"] == {"M": 2048, "N": 1024, "K": 8192}
    ]
    assert f"{min(products):.3f} to {max(products):.3f} over {len(products)} shapes" in text


def test_campaigns() -> None:
    page = (ROOT / "docs" / "tuning.md").read_text(encoding="utf-8")
    for path in sorted((RESULTS / "tuning").glob("*.json")):
        gates = read(f"tuning/{path.name}")["gates"]
        rejected = sum(r["seeds"] for r in gates["rejected"])
        cells = (gates["seeds"], rejected, gates["left_out_by_prediction"], gates["gpu_s_not_spent"], gates["gpu_s_spent"])
        assert f"| `{path.stem}` | {' | '.join(map(str, cells))} |" in page
    for name, want in (("tuned", "3.6 %"), ("heldout", "2.2 %")):
        loss = read("tuning/kmeans_assign.json")["validation"]["bf16"]["sets"][name]["loss"]
        assert f"{100 * (loss - 1):.1f} %" == want and want in page
