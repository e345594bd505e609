"""Every synchronisation line of the small programs is needed: left out, it gives exactly one error."""

from __future__ import annotations

import re

import pytest

from analyses import verify_text
from tests.analyses.hazard_table.cases import DATA, source

STEP = re.compile(
    r"\s*(wait|arrive|expect|sync|fence_async|wgmma_commit|wgmma_wait|tcgen05_commit|tmem_load_wait|tmem_store_wait|"
    r"bulk_commit|bulk_wait_read|cp_async_commit|cp_async_wait|cp_async_arrive|griddep_wait)\("
)
NAMES = sorted(p.stem for p in (DATA / "hazards").glob("*.cake") if STEP.search(p.read_text(encoding="utf-8")))
# lines that could go: nothing comes after them, or a product that every warp waits for orders the same accesses
SPARE = {
    ("b0_cp_async_sm90", "sync(math)#2"),
    ("b0_cp_async_sm90", "cp_async_wait(0)"),
    ("b2_gemm_sm80", "cp_async_wait(0)"),
    ("b4_smem_p_sm90", "sync(warpgroup)#1"),
    ("handshake_sm90", "arrive(both[0])"),
    ("handshake_sm90", "sync(both[0])"),
    ("storer_sm90", "arrive(d_free[t - 1])#2"),
}


@pytest.mark.parametrize("name", NAMES)
def test_each_step_left_out_is_one_error(name: str) -> None:
    lines = source(name).splitlines(keepends=True)
    tried = 0
    for i, line in enumerate(lines):
        if not STEP.match(line):
            continue
        again = sum(other.strip() == line.strip() for other in lines[: i + 1])
        twice = sum(other.strip() == line.strip() for other in lines) > 1
        spare = (name, line.strip() + (f"#{again}" if twice else "")) in SPARE
        blank = line[: len(line) - len(line.lstrip())] + "left_out = 0\n"
        report = verify_text("".join([*lines[:i], blank, *lines[i + 1 :]]))
        errors = [d.render() for d in report.diagnostics if d.severity == "error"]
        assert len(errors) == (0 if spare else 1), (line.strip(), errors)
        tried += 1
    assert tried
