"""What docs/measuring.md says a program cannot say: the gates look for none of it, so the language must refuse it."""

from __future__ import annotations

import re

import pytest

from cake_ir import bind, ops, parse
from corpus import kernels
from lowering import emit

KERNEL = """@kernel(target="sm_90a")
def k(x: In[f32, M, N], y: Out[f32, M, N]):
    where(N % 4 == 0)
    launch(ctas=M)
    team = role(warp, count=4)
    with team as w:
        v = load(x[cta, 128 * w:], vec(4).cols[128])
        store(y[cta, 128 * w:], v)
"""
STORE = "        store(y"


def rules(text: str) -> set[str]:
    parsed = parse(text)
    found = list(parsed.diagnostics)
    if parsed.file is not None:
        found += bind(parsed.file).diagnostics
    return {d.rule for d in found if d.severity == "error"}


def test_the_plain_kernel_is_legal() -> None:
    assert rules(KERNEL) == set()


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (KERNEL.replace(STORE, "        asm('mov.u32 %0, %clock;')\n" + STORE), "language/unsupported"),
        (KERNEL.replace(STORE, "        ptx(bar)\n" + STORE), "language/unknown-op"),
        (KERNEL.replace(STORE, "        t = [1.0, 2.0, 3.0]\n" + STORE), "language/unsupported"),
        (KERNEL.replace(STORE, "        t = (1.0, 2.0, 3.0)\n" + STORE), "language/type"),
        ("TABLE = (1.0, 2.0)\n" + KERNEL, "language/unsupported"),
        ("CACHE = smem(f32, 64)\n" + KERNEL, "language/unsupported"),
        (KERNEL.replace("launch(ctas=M)", "launch(ctas=M)\n    keep = static(f32, 64)"), "language/unknown-op"),
        (KERNEL.replace("load(x[cta", "load(z[cta"), "language/unknown-name"),
        (KERNEL.replace("load(x[cta", "load((x + 4)[cta"), "language/type"),
        (KERNEL.replace("store(y[cta", "store(x[cta"), "data/write-to-input"),
        ("import os\n" + KERNEL, "language/unsupported"),
        (KERNEL + "\nprint(1)\n", "language/unsupported"),
        (KERNEL.replace("launch(ctas=M)", "launch(ctas=M, stream=1)"), "language/unknown-argument"),
        (KERNEL + "# " + "x" * (256 << 10), "language/size"),
    ],
    ids=["inline assembly", "inline op", "list", "tuple value", "constant table", "state outside", "static state",
         "undeclared buffer", "pointer arithmetic", "write to an input", "import", "host code", "stream", "bulk"],
)  # fmt: skip
def test_there_are_no_words_for(text: str, rule: str) -> None:
    assert rule in rules(text)


def test_no_op_takes_text() -> None:
    """Options are names out of a closed list."""
    params = [p for o in ops.registry().values() for p in o.params]
    assert {p.kind for p in params} <= {
        "view", "region", "memory", "barrier", "frag", "value", "scalar", "static", "cond", "mask", "layout", "name", "ranks",
        "scope", "frag_or_view",
    }  # fmt: skip
    assert all(p.choices for p in params if p.kind == "name")


@pytest.mark.parametrize("name", ["gemm_sm90", "kmeans_assign", "rmsnorm"])
def test_emitted_code_keeps_nothing_between_launches_and_reads_the_signature_only(name: str) -> None:
    entry = next(k for k in kernels() if k.name == name)
    parsed = parse(entry.text())
    assert parsed.file is not None
    bound = bind(parsed.file, dict(entry.bindings), "sm_90a", entry.kernel).bound
    assert bound is not None
    emitted = emit(bound)
    kept = [
        line for line in emitted.cuda.splitlines() if re.match(r"\s*(static\s+)?__(device|constant|managed)__", line)
    ]
    assert all("(" in line or "constexpr" in line for line in kept), "functions, no variables"
    given = {t.name for t in bound.tensors}
    pointers = [thing for kind, thing in emitted.parameters if kind == "tensor"]
    maps = [thing.tensor for kind, thing in emitted.parameters if kind == "tensor_map"]
    assert {t.name for t in (*pointers, *maps)} <= given
