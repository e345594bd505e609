"""Candidate repairs that come before the general ones of a rule: swizzles, view bounds, multicast, shared use numbers, and
waits and fences at the release that the other role waits for (a kernel may hand other things over in between)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from analyses.fixglobal import GLOBAL
from analyses.fixtext import STEP, call_argument, index_of, indices
from cake_ir.diagnostics import Diagnostic

SPANS = (128, 64, 32)


def _one(title: str, *edits: Any) -> Iterator[Any]:
    from analyses.fixrules import Candidate

    if edits and all(e is not None for e in edits):
        yield Candidate(title, tuple(edits))


def legal_swizzle(f: Any, d: Diagnostic) -> Iterator[Any]:
    """swizzle= that the hardware lacks or that the rows do not fill: the widest that fits."""
    src, n = f.src, d.span.line
    old = call_argument(src.line(n), "swizzle")
    for span in SPANS:
        if old is not None and old != str(span):
            yield from _one(f"swizzle={span}", src.replace(n, f"swizzle={old}", f"swizzle={span}"))


def add_swizzle(f: Any, d: Diagnostic) -> Iterator[Any]:
    """A tile that an operand descriptor cannot describe: its declaration gets a swizzle, the widest that fits."""
    src = f.src
    name = re.search(r"'(\w+)'", d.message)
    first, last = src.kernel(d.span.line)
    for n in src.find(rf"^{name.group(1)} = smem\(", list(range(first, last + 1))) if name else ():
        code, old = src.line(n), call_argument(src.line(n), "swizzle")
        for span in SPANS:
            if old is not None:
                yield from _one(f"swizzle={span}", src.replace(n, f"swizzle={old}", f"swizzle={span}"))
            elif code.endswith(")"):
                yield from _one(f"swizzle={span}", src.replace(n, code, f"{code[:-1]}, swizzle={span})"))


def view_step(f: Any, d: Diagnostic) -> Iterator[Any]:
    """A view that leaves its tile inside a loop: step by the view's width, or end the loop with the tile."""
    src, n = f.src, d.span.line
    said = re.search(r"\.(rows|cols) of .*start \d+ with (\d+) element.*outside 0 \.\. (\d+)", d.message)
    if said is None:
        return
    axis, count, extent = said.groups()
    text = src.lines[n]
    for m in re.finditer(rf"\.{axis}\((\w+) \* (\w+), ({count}|\w+)\)", text):
        if m.group(1) != count:
            yield from _one(
                f"step by the width of the view: {count} * {m.group(2)}",
                src.replace(n, m.group(0), f".{axis}({count} * {m.group(2)}, {m.group(3)})"),
            )
    for p in src.parents(n):
        loop = re.match(r"for \w+ in (?:unroll|range)\((.*)\):", src.line(p))
        if loop is None:
            continue
        whole = re.match(r"(.*) // \w+$", loop.group(1))
        for bound in ([f"{whole.group(1)} // {count}"] if whole else []) + [str(int(extent) // int(count))]:
            if bound != loop.group(1):
                yield from _one(
                    f"end the loop with the tile: {bound} steps", src.replace(p, f"({loop.group(1)}):", f"({bound}):")
                )


def multicast(f: Any, d: Diagnostic) -> Iterator[Any]:
    """A part of a tile that no copy of this CTA writes: the copy of the peer's part goes to all CTAs."""
    src, tile = f.src, d.subject.resource or ""
    first, last = src.kernel(d.span.line)
    for n in src.find(rf"\btma_load\({re.escape(tile)}\b", list(range(first, last + 1))):
        code = src.line(n)
        if "multicast" not in code and code.endswith(")"):
            yield from _one(
                "copy to all CTAs of the cluster: multicast=cluster",
                src.replace(n, code, f"{code[:-1]}, multicast=cluster)"),
            )


def shared_use(f: Any, d: Diagnostic) -> Iterator[Any]:
    """A wrong use number on neighbouring lines that name the same use: all of them move together."""
    src, bar = f.src, d.subject.resource or ""
    n = d.span.line
    old = index_of(src.line(n), bar)
    if old is None:
        return
    named = f"{bar}[{old}]"
    block = [n]
    while named in src.line(block[-1] + 1):
        block.append(block[-1] + 1)
    while named in src.line(block[0] - 1):
        block.insert(0, block[0] - 1)
    first, last = src.kernel(n)
    used = [index_of(src.line(i), bar) for i in range(first, last + 1)]
    base = re.sub(r"\s*[+-]\s*\w+$", "", old)
    for use in dict.fromkeys([*used, f"{base} - 1", base, f"{base} + 1"]):
        if use is not None and use != old:
            yield from _one(
                f"use number {use} instead of {old}: {bar}[{use}]",
                *(src.replace(i, named, f"{bar}[{use}]") for i in block),
            )


def never_advanced(f: Any, d: Diagnostic) -> Iterator[Any]:
    """A counter that starts, numbers uses and never moves: whatever the finding says, it is the first suspect."""
    src = f.src
    first, last = src.kernel(d.span.line)
    body = range(first, last + 1)
    staged = "|".join(re.escape(r) for r in f.rings if f.stages(r) != "1") or "-"
    for i in src.find(r"^\w+ = (\d+|[A-Z]\w*( [+-] \d+)?)$", list(body)):
        name = src.line(i).split()[0]
        moves = any(re.match(rf"{name} (\+=|=)", src.line(j)) for j in body if j != i)
        ring = r"\w+" if src.line(i).endswith("= 0") else rf"(?:{staged})"
        uses = [j for j in body if re.search(rf"\b{ring}\[{name}\b", src.line(j))]
        if moves or not uses:
            continue
        for loop in (p for p in src.parents(uses[-1]) if p > i and src.line(p).startswith("for ")):
            yield from _one(
                f"advance the use number at the end of the loop: {name} += 1",
                src.after(src.last(loop), f"{name} += 1", like=loop + 1),
            )


def read_ahead(f: Any, d: Diagnostic) -> Iterator[Any]:
    """A read of another use than the one that is waited for, `load(buf[n + 1])`: a deeper wait would only hide it. Comes before
    the depths of the wait."""
    src = f.src
    for r in d.related:
        n = r.span.line
        code = src.line(n)
        if re.match(r"(cp_async|tma_load|bulk_load)\(", code):
            continue
        for name, at in indices(code):
            base = re.sub(r"\s*[+-]\s*\w+$", "", at)
            if base != at and f.stages(name) != "1" and name == d.subject.resource:
                yield from _one(
                    f"read use {base} instead of {at}: {name}[{base}]",
                    src.replace(n, f"{name}[{at}]", f"{name}[{base}]"),
                )


def await_commits(f: Any, d: Diagnostic) -> Iterator[Any]:
    """Products of the last stages still arrive in a CTA that may end: the role that refills the stages waits for them."""
    src = f.src
    first, last = src.kernel(d.span.line)
    body = list(range(first, last + 1))
    found = re.match(r"tcgen05_commit\((\w+)\[(\w+)\]", src.line(d.span.line))
    if found is None:
        return
    bar, use = found.groups()
    role = next((r for r in f.roles if src.find(rf"^wait\({bar}\[", src.role_lines(r, d.span.line))), None)
    ends = src.find(r"^sync\(cluster\)", body)
    if role is not None and ends and src.indent(ends[-1]) == len(STEP):
        stages = f.stages(bar)
        yield from _one(
            f"wait for the last uses of {bar} before the CTA may end",
            src.before(
                ends[-1],
                f"with {role}:",
                f"{STEP}for last in range({stages}):",
                f"{STEP}{STEP}wait({bar}[{use} - {stages} + last])",
            ),
        )


def late_wait(f: Any, d: Diagnostic) -> Iterator[Any]:
    """A release while products are pending: the wait there is deepens, or the release moves behind it."""
    src = f.src
    if "not committed" in d.message:
        return
    waits = src.find(r"^wgmma_wait\(\d+\)", f.lines(d))
    for w in sorted(waits, key=lambda w: abs(w - d.span.line)):
        old = src.line(w)
        for depth in range(int(old[len("wgmma_wait(") : old.index(")")]) - 1, -1, -1):
            yield from _one(f"wait for the product: wgmma_wait({depth})", src.replace(w, old, f"wgmma_wait({depth})"))
    for w in waits:
        above = [
            i for i in f.lines(d) if i < w and src.indent(i) == src.indent(w) and src.line(i).startswith("arrive(")
        ]
        for i in above[::-1]:
            yield from _one("release the operands behind the wait", *src.move(i, i, w))


def fence_at_release(f: Any, d: Diagnostic) -> Iterator[Any]:
    """Plain reads of memory that a copy overwrites: fence before the arrive on the barrier that the copying role waits for."""
    src = f.src
    for r in d.related:
        copy = r.span.line
        above = [i for i in range(copy - 1, 0, -1) if src.indent(i) == src.indent(copy)]
        for w in src.find(r"^wait\(", above)[:1]:
            bar = re.escape(src.line(w)[len("wait(") :].split("[")[0])
            for i in src.find(rf"^arrive\({bar}\[", [i for i in f.lines(d) if i > d.span.line]):
                at = src.outside(i, "with elected()")
                yield from _one("order the reads before the release: fence_async()", src.before(at, "fence_async()"))


def symbolic_arrivals(f: Any, d: Diagnostic) -> Iterator[Any]:
    """A wrong `arrivals=`: what is derived as a multiple of a tunable that counts a role, so that it holds for others too."""
    src, n = f.src, d.span.line
    said, old = re.search(r"but (\d+) arrive", d.message), call_argument(src.line(n), "arrivals")
    if said is None or old is None:
        return
    first, _ = src.kernel(n)
    head = " ".join(src.lines[first : src.statement_end(first) + 1])
    for _, count in f.roles.values():
        default = re.search(rf"\b{re.escape(count)}: [^=]* = (\d+)", head)
        size = int(default.group(1)) if default else 0
        if size > 1 and int(said.group(1)) % size == 0:
            times = int(said.group(1)) // size
            new = f"{times} * {count}" if times > 1 else count
            yield from _one(
                f"assert what is derived: arrivals={new}", src.replace(n, f"arrivals={old}", f"arrivals={new}")
            )


FORMS: dict[str, tuple[Any, ...]] = {
    "hardware/swizzle": (legal_swizzle,),
    "hardware/swizzle-span": (legal_swizzle,),
    "hardware/mma-swizzle": (add_swizzle,),
    "data/view-out-of-bounds": (view_step,),
    "data/uninitialised-memory": (multicast,),
    "sync/cluster-exit": (await_commits,),
    "data/wgmma-release-before-wait": (late_wait,),
    "data/proxy-fence-missing-release": (fence_at_release,),
    "derive/unequal-arrivals": (shared_use,),
    "data/cp-async-wait-count": (read_ahead,),
    "derive/asserted-arrivals": (symbolic_arrivals,),
    **GLOBAL,
}
