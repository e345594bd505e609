"""The families of products: what they may try is accepted, and the two layouts of b stay one schedule."""

from __future__ import annotations

import difflib
import itertools

import pytest

from analyses import verify
from cake_ir import bind, parse
from cake_ir.bound import BoundKernel
from corpus.families import Member
from corpus.families.gemm import FAMILY, HELDOUT, MODELS, SQUARES
from corpus.families.gemm_nn import FAMILY as NN
from corpus.kernels import kernels

KERNELS = {k.name: k for k in kernels()}
MEMBERS = [(f.name, m) for f in (FAMILY, NN) for m in f.kernels]


def seeds(member: Member) -> list[BoundKernel]:
    """Every binding that tuning would enumerate; all of them bind."""
    entry = KERNELS[member.kernel]
    file = parse(entry.text(), entry.file).file
    assert file is not None
    found = []
    for values in itertools.product(*member.domains.values()):
        done = bind(file, {**entry.bindings, **dict(zip(member.domains, values, strict=True))}, "sm_90a", entry.kernel)
        assert done.bound is not None, [d.render() for d in done.diagnostics]
        found.append(done.bound)
    return found


@pytest.mark.parametrize(("family", "member"), MEMBERS, ids=[f"{f}-{i}" for i, (f, _) in enumerate(MEMBERS)])
def test_what_may_be_tried_is_accepted(family: str, member: Member) -> None:
    """All of a member bind; they differ in sizes and order only, so one is verified in full."""
    contract = {"gemm": "gemm_bf16", "gemm_nn": "gemm_bf16_nn"}[family]
    assert KERNELS[member.kernel].contract == contract
    report = verify(seeds(member)[0])
    assert report.accepted and not report.diagnostics, [d.render() for d in report.diagnostics]


def test_waves_take_no_more_clusters_than_they_need() -> None:
    """16 waves of 8192^3 in tiles of 128 x 256 need 128 of 132 multiprocessors; one tile needs one CTA."""
    from lowering import emit, plan

    made = emit(seeds(FAMILY.kernels[0])[0])
    grids = {
        (m, n): plan(made, {"M": m, "N": n, "K": 64}, {}, 132, cubin_sha256="0" * 64).grid
        for m, n in ((8192, 8192), (4096, 4096), (128, 256), (129, 264), (128 * 133, 256))
    }
    assert grids == {
        (8192, 8192): 128, (4096, 4096): 128, (128, 256): 1, (129, 264): 4, (128 * 133, 256): 67,
    }  # fmt: skip


def test_both_layouts_are_one_schedule() -> None:
    """The texts differ in the name, in the prose and where b is declared, copied and multiplied, nowhere else."""
    tn, nn = (KERNELS[n].text().splitlines() for n in ("gemm_sm90_cluster", "gemm_sm90_nn"))
    differ = [
        line[2:].strip().replace(" ", "") for line in difflib.ndiff(tn, nn) if line[:2] == "+ " and '"""' not in line
    ]
    allowed = ("b_s=smem(", "tma_load(b_s[n]", "wgmma(", "defgemm_sm90_nn(", "WGS:", "STAGES:")
    assert differ and all(line.startswith(allowed) for line in differ), differ


def test_what_is_promised_is_measured() -> None:
    """The shapes of the speed table are tuned on, and what validates the choice is not."""
    from corpus.speed.shapes import GEMM

    tuned = [s for rows in FAMILY.tuning_shapes().values() for s in rows]
    assert all(shape in tuned for layout, shape in GEMM)
    assert len(tuned) == len({tuple(s.values()) for s in tuned}) >= len(SQUARES) + len(MODELS)
    assert not {tuple(s.values()) for s in tuned} & set(HELDOUT)
