"""What ops and elementwise statements ask of an SM, counted by hand."""

from __future__ import annotations

import pytest

from analyses.cost.work import let_work, op_work
from cake_ir import bound as B
from tests.analyses.toy_machine import OVERHEAD, TOY, bound_of, toy


@pytest.mark.parametrize(("expression", "pipe", "instructions"), [
    ("bitcast((bitcast(v, i32) & -32) | 5, f32)", "alu", 1),  # one LOP3 for two logic operations
    ("v * 2.0 + v", "fma", 1),
    ("min(v, max(v, 1.0))", "alu", 2),
    ("select(v < 1.0, v, 2.0)", "alu", 2),
    ("-abs(v)", "alu", 0),
    ("exp2(v)", "sfu", 1),
    ("cast(cast(v, bf16), f32)", "alu", 1.5),  # two are packed by one instruction
])  # fmt: skip
def test_elementwise_instructions(expression: str, pipe: str, instructions: float) -> None:
    text = f"""
@kernel(target="sm_90a")
def one(x: In[f32, 16, 64], y: Out[f32, 16, 64]):
    launch(ctas=1)
    rows = role(warp)
    with rows as w:
        v = load(x[0:, :], mma_d[16, 64])
        z = {expression}
        store(y[0:, :], z)
"""
    let = next(s for s in B.walk(bound_of(text).body) if isinstance(s, B.Let) and s.frag.name == "z")
    work = let_work(let, TOY, 1)
    lanes = {"fma": 128, "alu": 64, "sfu": 16}[pipe]
    assert work.get(pipe, 0.0) == pytest.approx(32 * instructions * 32 / lanes)
    assert work.get("issue", 0.0) == pytest.approx(32 * instructions * OVERHEAD / 4)


def test_products_are_charged_at_the_rate_of_their_form_and_width() -> None:
    rates = {("rs", 64): 2048.0, ("rs", 128): 4096.0, ("ss", 64): 1024.0, ("ss", 128): 1024.0}
    m = toy(wgmma=rates)
    assert m.product_clk(64, 128, 64, 16, True) == 256
    assert m.product_clk(64, 128, 64, 16, False) == 1024
    assert m.product_clk(64, 96, 64, 16, True) == pytest.approx(192 * 4096 / 3072)  # between the two
    assert m.product_clk(64, 32, 64, 16, True) == pytest.approx(64 * 4)  # narrower: as long as n = 64 takes
    assert m.product_clk(64, 128, 64, 8, True) == 128  # twice the rate for 8 bits


@pytest.mark.parametrize(("group", "flop"), [(1, 2 * 128 * 64 * 64), (2, 2 * 256 * 64 * 64)])
def test_a_pair_of_ctas_computes_twice_as_much_in_the_same_time(group: int, flop: float) -> None:
    text = """
@kernel(target="sm_100a")
def pair(y: Out[i32, G], *, CG: (1, 2) = 1):
    where(G % 2 == 0)
    launch(ctas=G, cluster=2)
    issuer = role(thread)
    a_s = smem(bf16, 128, 64, swizzle=128)
    b_s = smem(bf16, 64 // CG, 64, swizzle=128)
    acc_t = tmem(f32, 128, 64, stages=2, owner=issuer)
    done = mbarrier(arrivals=1)
    with issuer:
        if cluster_rank == 0:
            tcgen05_mma(acc_t[0], a_s, b_s, init=True, cta_group=CG)
            tcgen05_commit(done[0], multicast=cluster)
        wait(done[0])
        store(y[cta], 1)
    sync(cluster)
"""
    op = next(s for s in B.walk(bound_of(text, CG=group).body) if isinstance(s, B.Op) and s.name == "tcgen05_mma")
    work = op_work(op, TOY, 2, 1)
    assert (work["flop"], work["tensor"]) == (flop, 2 * 128 * 64 * 64 / 4096)
