"""Nsight Compute's pages as it printed them on an H200 (columns and rows left out, none changed)."""

from __future__ import annotations

from pathlib import Path

import pytest

from corpus.profiling import ncu
from corpus.profiling.metrics import BRIEF, METRICS, STALLS

DATA = Path(__file__).parents[1] / "data"


def page(name: str) -> str:
    return (DATA / f"ncu_{name}.csv").read_text()


@pytest.mark.parametrize("kernel", ["gemm", "kmeans"])
def test_every_metric_of_the_table_is_found_on_real_pages(kernel: str) -> None:
    found = ncu.raw_page(page(f"{kernel}.raw"))
    assert list(found) == [m.name for m in METRICS]
    assert all(found[m.name]["unit"] == m.unit for m in METRICS)
    assert all(0 <= found[n]["value"] <= 100 for n in found if found[n]["unit"] == "%")


def test_values_are_read_with_their_units() -> None:
    found = ncu.raw_page(page("gemm.raw"))
    assert found["duration"] == {"value": pytest.approx(178.336), "unit": "us"}
    assert found["tensor"]["value"] == pytest.approx(90.013188)
    assert found["sm_clock"]["value"] == pytest.approx(1.583901)
    assert found["dram_rate"] == {"value": pytest.approx(984.91, abs=0.01), "unit": "GB/s"}
    assert found["instructions"]["value"] == 15995276


@pytest.mark.parametrize(
    ("unit", "value", "us"), [("ns", "1,500.0", 1.5), ("ms", "2", 2000.0), ("nsecond", "10", 0.01), ("s", "1", 1e6)]
)
def test_other_scales_of_a_unit_are_the_same_number(unit: str, value: str, us: float) -> None:
    text = f'"ID","gpu__time_duration.avg"\n"","{unit}"\n"0","{value}"\n'
    assert ncu.raw_page(text) == {"duration": {"value": pytest.approx(us), "unit": "us"}}


def test_an_older_name_stands_in_and_no_data_is_left_out() -> None:
    text = (
        '"ID","dram__throughput.avg.pct_of_peak_sustained_elapsed","lts__t_sector_hit_rate.pct"\n'
        '"","%","%"\n"0","41.5","no data"\n'
    )
    assert ncu.raw_page(text) == {"dram": {"value": 41.5, "unit": "%"}}


@pytest.mark.parametrize("kernel", ["gemm", "kmeans"])
def test_instructions_carry_all_their_samples(kernel: str) -> None:
    found = ncu.source_page(page(f"{kernel}.source"))
    assert found[0]["offset"] == 0 and all(i["offset"] % 16 == 0 for i in found)
    assert [i["offset"] for i in found] == sorted({i["offset"] for i in found})
    for i in found:
        assert sum(i["stalls"].values()) == i["samples"]
        assert set(i["stalls"]) <= set(STALLS) and 0 not in i["stalls"].values()


def test_what_the_page_has_no_column_for_is_the_wait_for_the_tensor_core() -> None:
    rest = {
        i["offset"]: i["stalls"]["warpgroup_arrive"]
        for i in ncu.source_page(page("gemm.source"))
        if "warpgroup_arrive" in i["stalls"]
    }
    assert list(rest.values()) == [748], "the raw page of the same run counts 748 samples of warpgroup_arrive"


@pytest.mark.parametrize("text", ["", "==ERROR== no", '"ID","x"\n', '"Address","Source"\n"0x10","NOP"\n'])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="raw page"):
        ncu.raw_page(text)
    with pytest.raises(ValueError, match="source page"):
        ncu.source_page(text)


@pytest.mark.parametrize(
    ("log", "says"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", "NVreg_RestrictProfilingToAdminUsers=0"),
        ("==ERROR== Profiling failed because a driver resource was unavailable.", "dcgmi profile --pause"),
        ("==ERROR== unrecognised option '--import-source'", "too old"),
        ("==WARNING== No kernels were profiled.", "not launched under the profiler"),
        ("==ERROR== An error occurred while trying to profile.", "An error occurred"),
        ("Segmentation fault", "ended with code 9 and no report"),
    ],
)
def test_complaints_say_what_to_do(log: str, says: str) -> None:
    assert says in ncu.complaint(f"==PROF== Connected\n{log}\n", 9)


def test_the_brief_answer_names_known_metrics() -> None:
    assert set(BRIEF) <= {m.name for m in METRICS} and len({m.name for m in METRICS}) == len(METRICS)


@pytest.mark.parametrize(
    "rows", ['"0x10","x","1"', '"0x10","x","1","2","3"', '"zz","x","1","2"', '"0x10","' + "x" * 200_000 + '","1","2"']
)
def test_a_damaged_source_page_is_a_value_error(rows: str) -> None:
    head = '"Address","Source","# Samples","Instructions Executed"\n'
    with pytest.raises(ValueError):
        ncu.source_page(head + rows + "\n")
    assert ncu.source_page(head + '"0x10","NOP","inf","2"\n')[0]["samples"] == 0
