"""Candidate repairs, second half: asserted numbers, groups of bulk and cp.async copies, tensor memory, accumulators, names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import Any

from analyses.fixtext import STEP, call_argument, index_of, indices
from cake_ir.diagnostics import Diagnostic


def _one(title: str, *edits: Any) -> Iterator[Any]:
    from analyses.fixrules import Candidate

    if edits and all(e is not None for e in edits):
        yield Candidate(title, tuple(edits))


def assertion(f: Any, d: Diagnostic) -> Iterator[Any]:
    """`arrivals=` or `bytes=` that differ from what is derived."""
    name = "arrivals" if d.rule.endswith("arrivals") else "bytes"
    m = re.search(r"but (\d+) arrive|signal (\d+) B", d.message)
    old = call_argument(f.src.line(d.span.line), name)
    if m and old is not None:
        value = m.group(1) or m.group(2)
        yield from _one(
            f"assert what is derived: {name}={value}", f.src.replace(d.span.line, f"{name}={old}", f"{name}={value}")
        )


def bulk_depth(f: Any, d: Diagnostic) -> Iterator[Any]:
    """The source of a bulk store is overwritten (or the CTA ends) too early."""
    src, n = f.src, d.span.line
    lines = f.lines(d)
    stores = src.find(r"\b(tma_store|tma_reduce|bulk_store|bulk_reduce)\(", lines)
    ends = {src.statement_end(s) for s in stores}
    strays = [i for i in src.find(r"^bulk_commit\(", lines) if i - 1 not in ends]
    for s in stores:
        end = src.statement_end(s)
        for i in strays:
            if not src.line(end + 1).startswith("bulk_commit"):
                yield from _one("close the group at the store: bulk_commit()", *src.move(i, i, end))
        if not src.line(end + 1).startswith(("bulk_commit", "tma_store", "bulk_store")):
            yield from _one("close the group of the store: bulk_commit()", src.after(end, "bulk_commit()", like=s))
    wanted = re.search(r"at most (\d+) may stay", d.message)
    depths = [int(wanted.group(1))] if wanted else [1, 0]
    waits = src.find(r"^bulk_wait(_read)?\(", lines)
    for w in waits:
        m = re.search(r"(bulk_wait(?:_read)?)\((\d+)\)", src.line(w))
        if m is None:
            continue
        name, depth = m.group(1), int(m.group(2))
        for k in range(depth - 1, -1, -1):
            if wanted is None or k <= depths[0]:
                yield from _one(f"wait for older groups: {name}({k})", src.replace(w, m.group(0), f"{name}({k})"))
    if d.rule == "sync/bulk-read-at-exit":
        yield from _drain(f, d, lines)
        return
    bare = f.roles.get(d.subject.role or "", ("", ""))[0] == "thread" or (
        # all threads issue copies of their own, so each waits for its own
        bool(stores) and not any(src.line(p).startswith("with elected") for s in stores for p in src.parents(s)[:1])
    )
    syncs = [i for i in src.find(r"^sync\(", lines) if i < n and src.indent(i) == src.indent(n)]
    for k in depths:
        body = (f"bulk_wait_read({k})",) if bare else ("with elected():", f"{STEP}bulk_wait_read({k})")
        for i in syncs[::-1][:1]:
            yield from _one(f"wait until the store has read its source: bulk_wait_read({k})", src.before(i, *body))
        for sync in f.syncs(d.subject.role, n)[:2]:
            yield from _one(
                f"wait until the store has read its source: bulk_wait_read({k}) and {sync}", src.before(n, *body, sync)
            )
        for i in src.find(r"^bulk_commit\(", lines):
            yield from _one(
                f"wait until the store has read its source: bulk_wait_read({k})", src.after(i, f"bulk_wait_read({k})")
            )


def bulk_carried(f: Any, d: Diagnostic) -> Iterator[Any]:
    """A wait for bulk reads that no sync carries to the other threads."""
    if "waited for the bulk read" in d.message:
        yield from bulk_depth(f, d)


def _drain(f: Any, d: Diagnostic, lines: list[int]) -> Iterator[Any]:
    src, role = f.src, d.subject.role
    unit = f.roles.get(role or "", ("", ""))[0]
    body = ("bulk_wait_read(0)",) if unit == "thread" else ("with elected():", f"{STEP}bulk_wait_read(0)")
    first, end = src.kernel(d.span.line)
    while end > first and not src.line(end):
        end -= 1
    top = [i for i in range(first, end + 1) if re.match(rf"with {role}\b", src.line(i))]
    title = "drain the stores before the role ends: bulk_wait_read(0)"
    if top and src.indent(top[-1]) == 4:
        yield from _one(title, src.after(src.last(top[-1]), *body, like=top[-1] + 1))
    tail = src.line(end).startswith("sync(")
    place = end - 1 if tail else end
    yield from _one(
        title,
        src.after(place, f"with {role}:", *(STEP + b for b in body), like=top[0] if top else None)
        if not tail
        else src.before(end, f"with {role}:", *(STEP + b for b in body)),
    )
    # last: inside a loop this waits for every store at once
    elected = src.outside(d.span.line, "with elected()")
    if elected != d.span.line:
        yield from _one(title, src.after(src.last(elected), "bulk_wait_read(0)", like=d.span.line))


def cp_async(f: Any, d: Diagnostic) -> Iterator[Any]:
    """cp.async data used before their group is known to be complete."""
    src, n = f.src, d.span.line
    lines = f.lines(d)
    copies = src.find(r"^cp_async\(", lines)
    for c in copies:
        end = src.statement_end(c)
        if not src.line(end + 1).startswith(("cp_async(", "cp_async_commit(")):
            yield from _one("close the group: cp_async_commit()", src.after(end, "cp_async_commit()", like=c))
    for w in src.find(r"^cp_async_wait\(", lines):
        code = src.line(w)
        inner = code[code.index("(") + 1 : code.rindex(")")]
        number = re.fullmatch(r"\d+", inner)
        options = [str(k) for k in range(int(inner) - 1, -1, -1)] if number else [f"{inner} - 1", "0"]
        m = re.fullmatch(r"(.+) - (\d+)", inner)
        if m:
            options = [f"{m.group(1)} - {int(m.group(2)) + 1}", "0"]
        for k in options:
            yield from _one(
                f"wait for older groups: cp_async_wait({k})",
                src.replace(w, f"cp_async_wait({inner})", f"cp_async_wait({k})"),
            )
        for s in src.find(r"^sync\(", lines):
            if s < w and src.indent(s) == src.indent(w) and w - s == 1:
                yield from _one("wait before the sync, so that all lanes' copies are done", *src.move(s, s, w))
    for w in src.find(r"^cp_async_wait\(", lines):  # a wait away from the sync that carries it to the other lanes
        for s in sorted(src.find(r"^sync\(", lines), key=lambda s: abs(s - n))[:4]:
            if src.line(s - 1) != src.line(w):
                yield from _one(
                    f"wait for the copies before the sync: {src.line(w)}", src.delete(w), src.before(s, src.line(w))
                )
    place = src.outside(n, "with elected()")
    stages = (
        next((f.stages(name) for name, _ in indices(src.line(copies[0])) if name in f.rings), "1") if copies else "1"
    )
    for s in [i for i in src.find(r"^sync\(", lines) if i < n][::-1][:2]:
        for k in (f"{stages} - 2", "0") if stages != "1" else ("0",):
            yield from _one(f"wait for the copies: cp_async_wait({k})", src.before(s, f"cp_async_wait({k})"))
    for sync in f.syncs(d.subject.role, n):
        yield from _one(
            f"wait for the copies: cp_async_wait(0) and {sync}", src.before(place, "cp_async_wait(0)", sync)
        )


def tensor_wait(f: Any, d: Diagnostic) -> Iterator[Any]:
    """tmem_load or tmem_store without its wait."""
    src = f.src
    op = "tmem_load" if "load" in d.rule else "tmem_store"
    lines = f.lines(d)
    for i in src.find(rf"\b{op}\(", lines):
        end = src.statement_end(i)
        later = [j for j in src.find(rf"^{op}_wait\(", lines) if j > end and src.indent(j) == src.indent(i)]
        for j in later[:1]:
            yield from _one(f"wait before the first use: {op}_wait()", *src.move(j, j, end))
        yield from _one(f"wait before the first use: {op}_wait()", src.after(end, f"{op}_wait()", like=i))


def commit_not_arrive(f: Any, d: Diagnostic) -> Iterator[Any]:
    """An arrive where the products' own completion is meant."""
    src = f.src
    for i in src.find(r"^arrive\(", list(range(1, len(src.lines)))):
        if any("tcgen05_mma" in src.line(j) for j in range(max(1, i - 6), i)):
            again = src.line(i + 1)
            if again.startswith("arrive(") and indices(again)[:1] == indices(src.line(i))[:1]:
                name, at = indices(again)[0]
                commit = f"tcgen05_commit({name}[{at}], multicast=cluster)"
                yield from _one(
                    "arrive in both CTAs when the products are done",
                    src.replace(i, src.line(i), commit),
                    src.delete(i + 1),
                )
            yield from _one(
                "arrive when the products are done: tcgen05_commit", src.replace(i, "arrive(", "tcgen05_commit(")
            )


def commit_multicast(f: Any, d: Diagnostic) -> Iterator[Any]:
    """A commit that only one CTA of the pair sees."""
    src = f.src
    for i in src.find(r"^tcgen05_commit\(", list(range(1, len(src.lines)))):
        if "multicast" not in src.line(i):
            yield from _one(
                "commit to all CTAs of the cluster",
                src.replace(i, src.line(i), src.line(i)[:-1] + ", multicast=cluster)"),
            )


def first_product(f: Any, d: Diagnostic) -> Iterator[Any]:
    """An accumulator that the first product does not overwrite."""
    src, n = f.src, d.span.line
    end = src.statement_end(n)
    code = src.line(n)
    loops = [m.group(1) for p in src.parents(n) if (m := re.match(r"for (\w+) in range\(", src.line(p)))]
    options = [f"{v} == 0" for v in loops[:1]] + ["True"]
    old = call_argument(code, "init")
    if n == end:
        for option in options:
            if old is None:
                yield from _one(
                    f"overwrite the accumulator first: init={option}",
                    src.replace(n, code, f"{code[:-1]}, init={option})"),
                )
            elif old != option:
                yield from _one(
                    f"overwrite the accumulator first: init={option}", src.replace(n, f"init={old}", f"init={option}")
                )
    for r in d.related:
        line = src.line(r.span.line)
        if "fragment(" in line:
            yield from _one("start from zero: fragment(..., 0)", src.replace(r.span.line, line, line[:-1] + ", 0)"))


def griddep(f: Any, d: Diagnostic) -> Iterator[Any]:
    """An access of the predecessor's data before the role's own griddep_wait."""
    src, n = f.src, d.span.line
    lines = f.lines(d)
    for i in [i for i in src.find(r"^griddep_wait\(", lines) if i > n][:1]:
        yield from _one("wait for the predecessor first", src.before(n, "griddep_wait()"), src.delete(i))
    top = [p for p in src.parents(n) if p + 1 in lines and src.line(p).startswith(f"with {d.subject.role}")]
    for p in top[-1:]:
        yield from _one("wait for the predecessor first: griddep_wait()", src.before(p + 1, "griddep_wait()"))
    yield from _one("wait for the predecessor first: griddep_wait()", src.before(n, "griddep_wait()"))


def cluster_sync(f: Any, d: Diagnostic) -> Iterator[Any]:
    """A peer still reaches into a CTA that may have ended."""
    src = f.src
    first, end = src.kernel(d.span.line)
    while end > first and not src.line(end):
        end -= 1
    top = next((i for i in range(end, first, -1) if src.indent(i) == 4), end)
    yield from _one("keep the CTAs alive until all are done: sync(cluster)", src.after(end, "sync(cluster)", like=top))


def close_name(f: Any, d: Diagnostic) -> Iterator[Any]:
    """A misspelt name: the closest of those that exist."""
    src = f.src
    wrong = re.search(r"'([A-Za-z_]\w*)'", d.message)
    if wrong is None:
        return
    name = wrong.group(1)
    if d.rule == "language/unknown-argument":
        wrong = re.search(r"(?:no argument|unknown argument) '(\w+)'", d.message)
        name = wrong.group(1) if wrong else name
    elif d.rule == "language/unknown-attribute":
        wrong = re.search(r"no (?:attribute|method) '(\w+)'", d.message)
        name = wrong.group(1) if wrong else name
    meant = re.search(r"did you mean '(\w+)'", d.message)
    listed = re.search(r"known: (.*)$", d.message)
    pool = (
        list(re.findall(r"\w+", listed.group(1)))
        if listed
        else sorted(set(re.findall(r"[A-Za-z_]\w*", src.text)) - {name})
    )
    if d.rule == "language/unknown-attribute":
        pool = ["rows", "cols", "on", "T", "count", "at", "persistent", "sms"]
    if d.rule == "language/unknown-op":
        from cake_ir.ops import registry

        pool += list(registry())
    close = [meant.group(1)] if meant else []
    close += difflib.get_close_matches(name, pool, 4, 0.6)
    for n in range(d.span.line, max(d.span.line, d.span.end_line) + 1):
        m = (
            re.search(rf"\b{name}\b", src.lines[n][d.span.col - 1 if n == d.span.line else 0 :])
            if n < len(src.lines)
            else None
        )
        if m is None:
            continue
        from cake_ir.diagnostics import Edit, Span

        col = m.start() + (d.span.col if n == d.span.line else 1)
        for word in dict.fromkeys(c for c in close if c != name):
            yield from _one(
                f"'{word}' instead of '{name}'",
                Edit(span=Span(line=n, col=col, end_line=n, end_col=col + len(name)), new=word),
            )
        return


def legal_registers(f: Any, d: Diagnostic) -> Iterator[Any]:
    """registers= that the instruction does not take."""
    m, old = re.search(r"the next is (\d+)", d.message), re.search(r"registers=(\d+)", f.src.line(d.span.line))
    if m and old:
        yield from _one(
            f"the next legal value: registers={m.group(1)}",
            f.src.replace(d.span.line, old.group(0), f"registers={m.group(1)}"),
        )


def stage_index(f: Any, d: Diagnostic) -> Iterator[Any]:
    """A staged tile without use number, or a barrier without index."""
    src, n = f.src, d.span.line
    name = re.search(r"'(\w+)'", d.message)
    if name is None:
        return
    uses = [index_of(src.line(i), name.group(1)) for i in range(1, len(src.lines))]
    for use in dict.fromkeys(u for u in uses if u):
        m = re.search(rf"\b{name.group(1)}\b(?!\[)", src.line(n))
        if m:
            yield from _one(
                f"name the use: {name.group(1)}[{use}]",
                src.replace(n, src.line(n), src.line(n)[: m.end()] + f"[{use}]" + src.line(n)[m.end() :]),
            )


MORE: dict[str, tuple[Any, ...]] = {
    "commit": (commit_not_arrive,),
    "multicast": (commit_multicast,),
    "derive/asserted-arrivals": (assertion,),
    "derive/asserted-bytes": (assertion,),
    "data/bulk-wait-depth": (bulk_depth,),
    "bulk": (bulk_carried,),
    "sync/bulk-read-at-exit": (bulk_depth,),
    "data/cp-async-wait-count": (cp_async,),
    "data/tmem-load-wait": (tensor_wait,),
    "data/tmem-store-wait": (tensor_wait,),
    "data/uninitialised-accumulator": (first_product,),
    "sync/griddep-access-before-wait": (griddep,),
    "sync/cluster-exit": (cluster_sync,),
    "language/unknown-name": (close_name,),
    "language/unknown-op": (close_name,),
    "language/unknown-argument": (close_name,),
    "language/unknown-attribute": (close_name,),
    "language/stage-missing": (stage_index,),
    "hardware/setmaxnreg-range": (legal_registers,),
}
