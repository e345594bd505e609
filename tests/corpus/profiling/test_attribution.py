"""Samples by line and role, on hand-made code and on the machine code of a corpus kernel."""

from __future__ import annotations

import pytest

from cake_ir import bind, parse
from corpus.contract import contracts
from corpus.kernels import kernels
from corpus.profiling import facts, sass_listing
from corpus.profiling.attribution import by_role, roles_of, samples_by_line
from corpus.profiling.facts import line_table
from lowering import emit
from lowering.sass import Instruction, Sass
from tests.compiled import compiled
from tests.corpus.profiling.synthetic import CODE, FACTS, SASS, TEXT, rows

SAMPLES = (1, 2, 30, 4, 5, 6, 70, 8, 900, 10, 1100, 12)


def test_all_samples_are_attributed_or_named_unattributed() -> None:
    cells = samples_by_line(SASS, rows(*SAMPLES), FACTS)
    assert sum(c.samples for c in cells) == sum(SAMPLES) == sum(c.samples for c in by_role(cells).values())
    assert sum(sum(c.stalls.values()) for c in cells) == sum(SAMPLES)
    assert {(c.line, c.role): c.samples for c in cells} == {
        (8, ""): 1100, (5, "math"): 900, (4, "math"): 70, (2, "producer"): 30, (0, ""): 13, (3, "producer"): 10,
        (6, "math"): 10, (7, "math"): 8, (7, "producer"): 5, (7, ""): 2,
    }  # fmt: skip
    assert [c.samples for c in cells] == sorted((c.samples for c in cells), reverse=True)


def test_a_shared_loop_belongs_to_the_role_around_it_and_a_cluster_barrier_to_nobody() -> None:
    found = roles_of(SASS.instructions, FACTS)
    assert found[CODE.index((7, "BRA"))] == "producer" and found[7] == "math"
    assert found[CODE.index((8, "UCGABAR_WAIT"))] == "" and found[1] == ""


def test_a_barrier_that_holds_the_warp_later_counts_at_its_own_line() -> None:
    names = [(6, "BAR.SYNC.DEFER_BLOCKING"), (5, "ULOP3"), (5, "UMOV")]
    code = Sass("", tuple(Instruction("k", 16 * n, "", name, "", line) for n, (line, name) in enumerate(names)))
    held = [
        {"offset": 0, "samples": 2, "stalls": {"wait": 2}, "executed": 1},
        {"offset": 16, "samples": 0, "stalls": {}, "executed": 1},
        {"offset": 32, "samples": 11, "stalls": {"barrier": 10, "dispatch": 1}, "executed": 1},
    ]
    cells = samples_by_line(code, held, FACTS)
    assert {c.line: (c.samples, dict(c.stalls)) for c in cells} == {
        6: (12, {"wait": 2, "barrier": 10}),
        5: (1, {"dispatch": 1}),
    }
    assert held[2]["samples"] == 11, "the profile itself is left as it is"


def test_a_profile_of_another_cubin_is_refused() -> None:
    with pytest.raises(ValueError, match="instruction at 0xc0, the cubin has none"):
        samples_by_line(SASS, rows(*range(13)), FACTS)


def test_the_listing_shows_line_samples_and_stall_beside_each_instruction() -> None:
    shown = sass_listing(SASS, TEXT, rows(*SAMPLES)).splitlines()
    assert len([x for x in shown if not x.startswith("#")]) == 1 + len(CODE)
    at = next(i for i, x in enumerate(shown) if "HGMMA" in x)
    assert shown[at - 1] == "# 5: product" and shown[at].split() == [
        "80",
        "5",
        "900",
        "41.9%",
        "10",
        "long_sb",
        "900",
        "HGMMA.64x256x16",
        "R0",
    ]
    assert shown[1] == "# code of no line" and shown[-1].startswith("     b0    99")
    plain = sass_listing(SASS, TEXT, [])
    assert "HGMMA.64x256x16 R0" in plain and "long_sb" not in plain


@pytest.fixture(scope="module")
def gemm() -> tuple[str, object]:
    entry = next(k for k in kernels() if k.name == "gemm_sm90")
    file = parse(entry.text()).file
    assert file is not None
    return entry.text(), bind(file, {}, "sm_90a").bound


def test_lines_of_a_corpus_kernel_know_their_role(gemm: tuple[str, object]) -> None:
    text, bound = gemm
    table = line_table(bound)  # type: ignore[arg-type]
    at = {part: next(n for n, line in enumerate(text.split("\n"), 1) if part in line)
          for part in ("wait(free", "wgmma(acc", "sync(cluster)", "for k in")}  # fmt: skip
    assert table[at["wait(free"]].role == "producer" and table[at["wait(free"]].ops == ("wait",)
    assert table[at["wgmma(acc"]].role == "math" and table[at["sync(cluster)"]].role == "" == table[at["for k in"]].role


def test_every_instruction_of_a_real_kernel_finds_a_role_or_is_shared(gemm: tuple[str, object]) -> None:
    text, bound = gemm
    known = facts(bound, text, contracts()["gemm_bf16"], {"M": 4096, "N": 4096, "K": 4096})  # type: ignore[arg-type]
    sass = compiled(emit(bound)).sass  # type: ignore[arg-type]
    one = [{"offset": i.offset, "samples": 1, "stalls": {"wait": 1}, "executed": 1} for i in sass.instructions]
    cells = samples_by_line(sass, one, known, known.kernel)
    total = sum(c.samples for c in cells)
    assert total == len(sass.instructions)
    roles = {r: c.samples / total for r, c in by_role(cells).items()}
    assert roles["math"] > 0.3 and roles["producer"] > 0.05, "the rest is set-up, loop counters and padding"
    assert all(known.text(c.line) for c in cells if c.line)
    assert known.bounds_us["tensor"] > 100 and known.warps == {"producer": 4, "math": 8}
