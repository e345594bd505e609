"""Candidate repairs by rule. A candidate is a guess: `analyses.fixes` keeps those whose edited copy verifies."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, zip_longest

from analyses.fixtext import STEP, Source, call_argument, index_of, indices
from cake_ir.diagnostics import Diagnostic, Edit, Span


@dataclass(frozen=True)
class Candidate:
    """One possible repair."""

    title: str
    edits: tuple[Edit, ...]


OFFSET = r"\s*[+-]\s*\w+$"
BLOCKS = ("for ", "if ", "while ", "with elected")
Maker = Callable[["Facts", Diagnostic], Iterator[Candidate]]


@dataclass(frozen=True)
class Facts:
    """The text with its declarations: rings by name -> (kind, text of stages=), roles by name -> (unit, text of count=)."""

    src: Source
    rings: dict[str, tuple[str, str]]
    roles: dict[str, tuple[str, str]]

    def stages(self, name: str) -> str:
        return self.rings.get(name, ("", "1"))[1]

    def barriers(self) -> list[str]:
        return [n for n, (kind, _) in self.rings.items() if kind == "mbarrier"]

    def syncs(self, role: str | None, line: int) -> list[str]:
        """Rendezvous of the unit at a line, narrowest first."""
        unit, count = self.roles.get(role or "", ("", "1"))
        in_warps = any(self.src.line(p).startswith("with warps()") for p in self.src.parents(line))
        found = ["sync(warp)"] if unit == "warp" or in_warps else []
        found += ["sync(warpgroup)"] if unit == "warpgroup" else []
        return found + ([f"sync({role})"] if unit in ("warp", "warpgroup") and count != "1" else [])

    def lines(self, d: Diagnostic) -> list[int]:
        return self.src.role_lines(d.subject.role, d.span.line) if d.subject.role else []


def facts(src: Source) -> Facts:
    """Reads the declarations."""
    rings: dict[str, tuple[str, str]] = {}
    roles: dict[str, tuple[str, str]] = {}
    for line in src.lines:
        m = re.match(r"\s*([A-Za-z_]\w*) = (mbarrier|smem|tmem|named_barrier|role)\(", line)
        if m is None:
            continue
        name, kind = m.groups()
        if kind == "role":
            unit = re.search(r"role\((\w+)", line)
            roles[name] = (unit.group(1) if unit else "", call_argument(line, "count") or "1")
        else:
            rings[name] = (kind, call_argument(line, "stages") or "1")
    return Facts(src, rings, roles)


def candidates(src: Source, d: Diagnostic) -> Iterator[Candidate]:
    """Candidates for one finding, the likeliest and narrowest first."""
    f = facts(src)
    first = (never_advanced, *FORMS.get(d.rule, ()), *FIRST.get(d.rule, ()))
    yield from (c for make in first for c in make(f, d))
    # two suspicions of like weight take turns, so that neither uses up the tries
    rest = (chain.from_iterable(make(f, d) for make in makers.get(d.rule, ())) for makers in (MAKERS, PLACES))
    yield from (c for row in zip_longest(*rest) for c in row if c is not None)


def _one(title: str, *edits: Edit | None) -> Iterator[Candidate]:
    kept = tuple(e for e in edits if e is not None)
    if len(kept) == len(edits) and kept:
        yield Candidate(title, kept)


def _outside(f: Facts, n: int) -> int:
    return f.src.outside(n, "with elected()")


# ---- rings


def wait_for_release(f: Facts, d: Diagnostic) -> Iterator[Candidate]:
    """A refill without a wait for the release of the slot."""
    src, n, tile = f.src, d.span.line, d.subject.resource or ""
    code = src.line(n)
    use = index_of(code, tile)
    if use is None:
        return
    signal = (call_argument(code, "signal") or "").split("[")[0]
    anchor = n
    for i in range(n - 1, 0, -1):
        text = src.line(i)
        served = range(i + 1, src.last(i) + 1) if text.startswith("if ") else [i]  # a guard of such lines counts as one
        if src.indent(i) < src.indent(n) or not text or not all(f"[{use}]" in src.line(j) for j in served):
            break
        if src.indent(i) == src.indent(n):
            anchor = i
    if anchor != n and src.line(anchor - 1).startswith("if ") and src.indent(anchor - 1) == src.indent(n):
        anchor -= 1
    lines = f.lines(d)
    names = [b for b in f.barriers() if b != signal]
    # first the rings that nobody waits for yet, then those with as many stages as the tile
    names.sort(
        key=lambda b: (
            bool(src.find(rf"\bwait\({b}\[", src.find("", list(range(1, len(src.lines)))))),
            f.stages(b) != f.stages(tile),
        )
    )
    for b in names:
        right = f"{use} - {f.stages(b)}"
        for w in src.find(rf"\bwait\({b}\[", lines):
            old = index_of(src.line(w), b)
            if old is not None and old != right:
                yield from _one(
                    f"wait for the release of the slot's last use: {b}[{right}]",
                    src.replace(w, f"{b}[{old}]", f"{b}[{right}]"),
                )
        yield from _one(f"wait for {b}[{right}] before the slot is refilled", src.before(anchor, f"wait({b}[{right}])"))


def wait_for_data(f: Facts, d: Diagnostic) -> Iterator[Candidate]:
    """A read before the copy (or product) that brings the data is waited for."""
    src, n, tile = f.src, d.span.line, d.subject.resource or ""
    everywhere = list(range(*_kernel(src, n)))
    own = index_of(src.line(n), tile)
    signals = []
    for i in src.find(rf"\b(tma_load|bulk_load)\({re.escape(tile)}\b", everywhere):
        end = src.statement_end(i)
        code = " ".join(src.line(j) for j in range(i, end + 1))
        target = call_argument(code, "signal")
        if target:
            name = target.split("[")[0]
            at = index_of(target, name) or "0"
            signals.append((name, own if own is not None and index_of(code, tile) == at else at))
    for i in src.find(r"\btcgen05_commit\(", everywhere):
        for name, at in indices(src.line(i))[:1]:
            signals.append((name, own if own is not None and f.stages(name) == f.stages(tile) else at))
    lines = f.lines(d)
    top = _outside(f, n)
    for p in src.parents(top) if own is not None and re.fullmatch(r"\w+", own) else ():
        # a loop that does not count the uses touches one use throughout
        if p not in lines or not src.line(p).startswith("for "):
            break
        counted = re.search(rf"\b{own}\b", src.line(p).split(" in ")[0])
        if counted or src.find(rf"^{own} \+?= ", list(range(p, src.last(p) + 1))):
            break
        top = p
    for name, at in dict.fromkeys(signals):
        for w in src.find(rf"\bwait\({name}\[", lines):
            old = index_of(src.line(w), name)
            if old is not None and old != at:
                yield from _one(
                    f"wait for the use that is read: {name}[{at}]", src.replace(w, f"{name}[{old}]", f"{name}[{at}]")
                )
            if old == at and w > n:
                yield from _one(
                    f"wait for {name}[{at}] before the data are used",
                    src.before(top, f"wait({name}[{at}])"),
                    src.delete(w),
                )
        yield from _one(f"wait for {name}[{at}] before the data are used", src.before(top, f"wait({name}[{at}])"))


def _kernel(src: Source, n: int) -> tuple[int, int]:
    first, last = src.kernel(n)
    return first, last + 1


def arrive_after_use(f: Facts, d: Diagnostic) -> Iterator[Candidate]:
    """Nobody (or too few) arrive on a ring: the users of the tiles that it guards release them after their last use."""
    src, bar = f.src, d.subject.resource or ""
    first, last = _kernel(src, d.span.line)
    everywhere = list(range(first, last))
    peers = src.find(rf"\barrive\({bar}\[.*\.on\(", everywhere)
    for i in peers:
        m = re.search(r"\.on\((\d+)\)", src.line(i))
        if m:
            other = f"{1 - int(m.group(1))}" if m.group(1) in "01" else "0"
            yield from _one(
                f"arrive in the other CTA of the pair too: {bar}.on({other})",
                src.after(i, src.line(i).replace(m.group(0), f".on({other})")),
            )
    for w in src.find(rf"\bwait\({bar}\[", everywhere):
        waited = index_of(src.line(w), bar) or ""
        use = re.sub(rf"\s*-\s*{re.escape(f.stages(bar))}$", "", waited)
        block = src.parents(w)
        inside = range(w + 1, (src.last(block[0]) if block else last) + 1)
        tiles = {
            name
            for i in inside
            for name, at in indices(src.line(i))
            if at == use and f.rings.get(name, ("",))[0] in ("smem", "tmem")
        }
        waiter = next((role for role in f.roles if w in src.role_lines(role, w)), "")
        mine = {
            name
            for i in src.role_lines(waiter, w)
            for name, at in indices(src.line(i))
            if at == use and f.rings.get(name, ("",))[0] in ("smem", "tmem")
        }
        for role in f.roles:
            lines = src.role_lines(role, w)
            used = [i for i in lines if i not in inside and any(name in tiles for name, _ in indices(src.line(i)))]
            if not tiles and role != waiter:
                used = [i for i in lines if any(name in mine for name, _ in indices(src.line(i)))]
            if used:
                yield from _release(f, role, bar, use, used, lines)


def _release(f: Facts, role: str, bar: str, use: str, used: list[int], lines: list[int]) -> Iterator[Candidate]:
    src = f.src
    last = used[-1]
    found = [index for name, index in indices(src.line(last)) if f.rings.get(name, ("",))[0] in ("smem", "tmem")]
    base = use if use in found or not found else found[0]
    outer = [p for p in src.parents(last) if src.line(p).startswith("for ")]
    guards = [src.line(p) for p in src.parents(last) if outer and p > outer[0]][::-1]
    waits_above = [i for i in lines if re.match(r"wait\(", src.line(i)) and i < last]
    level = min(src.indent(last), src.indent(waits_above[-1])) if waits_above else src.indent(last)
    while src.indent(last) > level and src.parents(last):
        last = src.parents(last)[0]
    end = src.last(last) if src.line(last).endswith(":") else src.statement_end(last)
    if any("tcgen05_mma" in src.line(i) for i in used):
        yield from _one(
            f"commit the products to {bar}[{base}]", src.after(end, f"tcgen05_commit({bar}[{base}])", like=last)
        )
        yield from _one(
            f"commit the products to {bar}[{base}] of all CTAs",
            src.after(end, f"tcgen05_commit({bar}[{base}], multicast=cluster)", like=last),
        )
        for more in (", multicast=cluster", "") if outer and guards else ():
            block = [*guards, f"tcgen05_commit({bar}[{base}]{more})"]
            yield from _one(
                f"commit the products of the loop to {bar}[{base}]",
                src.after(src.last(outer[0]), *(STEP * i + line for i, line in enumerate(block)), like=outer[0]),
            )
    arrive = f"arrive({bar}[{base}])"
    waits = [i for i in lines if i > end and src.line(i).startswith("wgmma_wait(0)")]
    if any(re.search(r"\bwgmma\(", src.line(i)) for i in used):
        for i in waits[:1]:
            yield from _one(f"release the stage behind the wait: {arrive}", src.after(i, arrive))
    yield from _one(f"release the stage after its last use: {arrive}", src.after(end, arrive, like=last))
    yield from _one(f"fence, then release the stage: {arrive}", src.after(end, "fence_async()", arrive, like=last))
    lead = f"arrive({bar}[{base}].on(0))"
    yield from _one(f"release the stage in the leading CTA: {lead}", src.after(end, lead, like=last))


def expect_bytes(f: Facts, d: Diagnostic) -> Iterator[Candidate]:
    """Copies that signal a use which their role does not expect."""
    src, n, bar = f.src, d.span.line, d.subject.resource or ""
    end = src.statement_end(n)
    code = " ".join(src.line(i) for i in range(n, end + 1))
    target = call_argument(code, "signal") or ""
    use = index_of(target, bar)
    if use is None:
        return
    lines = f.lines(d)
    for i in src.find(rf"\barrive\({bar}\[{re.escape(use)}\]", lines):
        yield from _one(
            f"expect the bytes instead of arriving: expect({bar}[{use}])", src.replace(i, "arrive(", "expect(")
        )
    for i in src.find(rf"\bexpect\({bar}\[", lines):
        old = index_of(src.line(i), bar)
        if old is not None and old != use:
            yield from _one(
                f"expect the use that the copies signal: {bar}[{use}]", src.replace(i, f"{bar}[{old}]", f"{bar}[{use}]")
            )
    expected = {index_of(src.line(i), bar) for i in src.find(rf"\bexpect\({bar}\[", lines)}
    for at in sorted(x for x in expected if x is not None and x != use):
        yield from _one(
            f"signal the use that is expected: {bar}[{at}]", src.replace(n, f"{bar}[{use}]", f"{bar}[{at}]")
        )
    rank = re.search(r"\.on\(([^)]*)\)", target)
    if rank:
        yield from _one(
            f"expect the bytes in the CTA that receives them: expect({bar}[{use}])",
            src.before(n, f"if cluster_rank == {rank.group(1)}:", f"{STEP}expect({bar}[{use}])"),
        )
    yield from _one(f"expect the bytes before the copies: expect({bar}[{use}])", src.before(n, f"expect({bar}[{use}])"))


def match_expect(f: Facts, d: Diagnostic) -> Iterator[Candidate]:
    """An expect whose use no copy signals."""
    src, n, bar = f.src, d.span.line, d.subject.resource or ""
    mine = index_of(src.line(n), bar)
    for i in f.lines(d):
        target = call_argument(src.line(i), "signal") or ""
        use = index_of(target, bar)
        if use is not None and mine is not None and use != mine:
            yield from _one(
                f"expect the use that the copies signal: {bar}[{use}]",
                src.replace(n, f"{bar}[{mine}]", f"{bar}[{use}]"),
            )
            yield from _one(
                f"signal the use that is expected: {bar}[{mine}]", src.replace(i, f"{bar}[{use}]", f"{bar}[{mine}]")
            )


def use_numbers(f: Facts, d: Diagnostic) -> Iterator[Candidate]:
    """A wrong use number: indices of rings on the lines of the finding, brought to what their neighbours use."""
    src = f.src
    first, last = _kernel(src, d.span.line)
    related = [r.span.line for r in d.related] + [s.span.line for s in d.evidence]
    resource = d.subject.resource
    near = [
        d.span.line,
        *related,
        *(src.find(rf"\b{re.escape(resource)}\[", list(range(first, last))) if resource else []),
    ]
    rings = {n for n, (kind, _) in f.rings.items() if kind in ("mbarrier", "smem", "tmem")}
    plain: list[Candidate] = []
    rest: list[Candidate] = []
    for n in dict.fromkeys(i for i in near if first <= i < last):
        for name, at in indices(src.line(n)):
            if name not in rings:
                continue
            base = re.sub(OFFSET, "", at)
            all_uses = [x for i in range(first, last) for o, x in indices(src.line(i)) if o in rings]
            others = [x for x in all_uses if x != at and re.sub(OFFSET, "", x) == base]
            waits = [f"{base} - {f.stages(name)}"] if "wait(" in src.line(n) else []
            options = (_folded(o) for o in (base, *waits, *others) if o)
            for option in dict.fromkeys(o for o in options if o != at):
                title = f"use number {option} instead of {at}: {name}[{option}]"
                # the odd one out is more likely wrong than what its neighbours write
                odd = all_uses.count(at) < all_uses.count(option)
                (plain if odd else rest).extend(_one(title, src.replace(n, f"{name}[{at}]", f"{name}[{option}]")))
    yield from plain
    yield from rest


def _folded(use: str) -> str:
    """A difference of two numbers as a number."""
    m = re.fullmatch(r"(\d+) ([+-]) (\d+)", use)
    return str(int(m.group(1)) + int(m.group(2) + m.group(3))) if m else use


def advance(f: Facts, d: Diagnostic) -> Iterator[Candidate]:
    """A use number that stands still: advance the counter at the end of the loop."""
    src = f.src
    loop = d.related[0].span.line if d.related else 0
    use = index_of(src.line(d.span.line), d.subject.resource or "") or ""
    name = re.match(r"[A-Za-z_]\w*", use)
    if not loop or name is None:
        return
    counter = name.group(0)
    for i in src.find(rf"^{counter} = ", list(range(loop + 1, src.last(loop) + 1))):
        yield from _one(f"advance the use number: {counter} += 1", src.replace(i, src.line(i), f"{counter} += 1"))
    yield from _one(
        f"advance the use number at the end of the loop: {counter} += 1",
        src.after(src.last(loop), f"{counter} += 1", like=loop + 1),
    )


# ---- order inside a role


def fence_after(f: Facts, d: Diagnostic) -> Iterator[Candidate]:
    """Stores that an asynchronous reader follows: fence behind the store, before the sync."""
    src, n = f.src, d.span.line
    end = src.statement_end(n)
    block = [i for i in f.lines(d) if i > end and src.indent(i) >= src.indent(n)]
    for i in src.find(r"^fence_async\(", block)[:1]:
        yield from _one("fence before the release, not behind it", *src.move(i, i, end))
    yield from _one(
        "make the stores visible to the async proxy: fence_async()", src.after(end, "fence_async()", like=n)
    )
    for p in src.parents(n)[:1]:
        if src.line(p).startswith(("for ", "if ")):
            yield from _one(
                "make the stores visible to the async proxy: fence_async()",
                src.after(src.last(p), "fence_async()", like=p),
            )


def fence_before_release(f: Facts, d: Diagnostic) -> Iterator[Candidate]:
    """Plain reads of a stage that a copy overwrites: fence before the arrive that releases it."""
    src, n = f.src, d.span.line
    for i in src.find(r"\barrive\(", [i for i in f.lines(d) if i > n])[:3]:
        yield from _one(
            "order the reads before the release: fence_async()", src.before(_outside(f, i), "fence_async()")
        )
    end = src.statement_end(n)
    yield from _one("order the reads before the release: fence_async()", src.after(end, "fence_async()", like=n))


def add_sync(f: Facts, d: Diagnostic) -> Iterator[Candidate]:
    """Units or lanes that exchange data: a sync between the two accesses, narrowest first."""
    src, n = f.src, d.span.line
    lines = f.lines(d)
    also = [r.span.line for r in d.related if r.span.line in lines and "also here" in r.message]
    others = [r.span.line for r in d.related if r.span.line in lines and r.span.line not in (n, *also)]
    # the second accesses that follow the first one in the text: one sync before the foremost orders them all
    foremost = min((i for i in (n, *also) if others and i > others[0]), default=n)
    places = []
    for at in dict.fromkeys((foremost, n)):
        places += [src.before(_outside(f, p), "{}") for p in _apart(f, at, others, lines)]
    for line in (*others, *also[:2]):
        end = src.statement_end(line)
        end += src.line(end + 1).startswith("fence_async(")
        places.append(src.after(end, "{}", like=line))
        places.append(src.before(_outside(f, line), "{}"))
        outer = [p for p in src.parents(line) if p in lines and src.line(p).startswith(BLOCKS)]
        places += [src.after(src.last(p), "{}", like=p) for p in outer]
    places += [src.before(p, "{}") for p in src.parents(n) if p in lines and src.line(p).startswith(("for ", "if "))]
    places += [src.after(i, "{}") for i in src.find(r"^\w+_wait(_read)?\(", lines) if i < n][::-1]
    syncs = f.syncs(d.subject.role, n)
    if re.search(r"nothing orders it (after|with) \w+ by ", d.message):
        syncs = syncs[-1:]  # two units of the role: narrower ones do not reach both
    for sync in syncs:
        for place in places:
            yield Candidate(f"order the accesses: {sync}", (Edit(span=place.span, new=place.new.format(sync)),))
    for scope in ("cta", "cluster"):
        top = next((p for p in reversed(src.parents(n)) if src.line(p).startswith("with ")), None)
        if top is not None:
            yield from _one(f"order the accesses: sync({scope})", src.before(top, f"sync({scope})"))


def _apart(f: Facts, n: int, others: list[int], lines: list[int]) -> list[int]:
    """The line and the headers around it, outermost first, of blocks in which none of the others stand."""
    found = [n]
    for p in f.src.parents(n):
        inside = range(p, f.src.last(p) + 1)
        if p not in lines or not f.src.line(p).startswith(BLOCKS) or any(i in inside for i in others):
            break
        found.insert(0, p)
    return found


def deeper_wgmma_wait(f: Facts, d: Diagnostic) -> Iterator[Candidate]:
    """Products that are still pending: commit them, wait deeper, or release behind the wait."""
    src, n = f.src, d.span.line
    lines = f.lines(d)
    out = _outside(f, n)
    if "not committed" in d.message:
        yield from _commit(f, lines)
    behind = [i for i in src.find(r"^wgmma_wait\(", lines) if i > n and src.indent(i) == src.indent(out)]
    if behind and "arrive(" in src.line(n):
        yield from _one("release the operands behind the wait", *src.move(out, src.last(out), behind[0]))
    for w in [i for i in src.find(r"^wgmma_wait\(", lines) if i < n][::-1][:2]:
        m = re.search(r"wgmma_wait\((\d+)\)", src.line(w))
        for k in range(int(m.group(1)) - 1, -1, -1) if m else ():
            yield from _one(f"wait for the product: wgmma_wait({k})", src.replace(w, m.group(0), f"wgmma_wait({k})"))  # type: ignore[union-attr]
    yield from _commit(f, lines)
    for k in (1, 0):
        for place in dict.fromkeys(
            [out, *(p for p in src.parents(out) if p in lines and src.line(p).startswith(("for ", "if ")))]
        ):
            yield from _one(f"wait for the product: wgmma_wait({k})", src.before(place, f"wgmma_wait({k})"))
        for c in src.find(r"^wgmma_commit\(", lines):
            yield from _one(f"wait for the product: wgmma_wait({k})", src.after(c, f"wgmma_wait({k})"))


def _commit(f: Facts, lines: list[int]) -> Iterator[Candidate]:
    src = f.src
    for p in src.find(r"\bwgmma\(", lines):
        end = src.statement_end(p)
        if src.line(end + 1) != "wgmma_commit()":
            yield from _one("commit the product: wgmma_commit()", src.after(end, "wgmma_commit()", like=p))


def release_later(f: Facts, d: Diagnostic) -> Iterator[Candidate]:
    """A release before the last use: move it (with its fence) behind."""
    src, n = f.src, d.span.line
    first = _outside(f, n)
    last = src.last(first)
    if src.line(first - 1) == "fence_async()":
        first -= 1
    lines = [i for i in f.lines(d) if i > last and src.indent(i) == src.indent(first)]
    resource = d.subject.resource or ""
    uses = [
        i
        for i in lines
        if re.search(rf"\b{re.escape(resource)}\b", src.line(i)) or src.line(i).startswith(("wgmma_wait", "for "))
    ]
    for i in uses[::-1]:
        end = src.last(i) if src.line(i).endswith(":") else src.statement_end(i)
        pad, own = " " * src.indent(i), src.indent(first)
        moved = "".join(f"{pad}{src.lines[j][own:]}\n" for j in range(first, last + 1))
        yield Candidate(
            "release the stage after its last use",
            (src.delete(first, last), Edit(span=Span(line=end + 1, col=1, end_line=end + 1, end_col=1), new=moved)),
        )


from analyses.fixforms import FORMS, never_advanced  # noqa: E402 - likewise
from analyses.fixmore import MORE  # noqa: E402 - the second half of the table uses the helpers above
from analyses.fixplaces import FIRST, PLACES  # noqa: E402 - likewise

MAKERS: dict[str, tuple[Maker, ...]] = {
    "data/slot-reuse-without-wait": (wait_for_release, use_numbers),
    "data/overwritten-while-read": (wait_for_release, add_sync, use_numbers),
    "data/read-before-arrival": (wait_for_data, use_numbers),
    "data/tcgen05-commit-missing": (wait_for_data, *MORE["commit"]),
    "data/released-before-read": (release_later, use_numbers),
    "data/wgmma-release-before-wait": (deeper_wgmma_wait,),
    "data/accumulator-read-early": (deeper_wgmma_wait,),
    "data/proxy-fence-missing-write": (fence_after,),
    "data/proxy-fence-missing-release": (fence_before_release,),
    "data/lane-race": (add_sync,),
    "data/unsynchronised-read": (add_sync,),
    "data/unsynchronised-write": (add_sync, *MORE["bulk"]),
    "sync/release-misses-lanes": (add_sync,),
    "data/uninitialised-memory": (use_numbers,),
    "derive/no-arrival": (arrive_after_use,),
    "derive/unequal-arrivals": (arrive_after_use, use_numbers),
    "derive/unexpected-bytes": (expect_bytes,),
    "derive/expect-without-copies": (match_expect, use_numbers),
    "sync/deadlock": (use_numbers, arrive_after_use, *MORE["multicast"]),
    "sync/use-not-advanced": (advance,),
    "sync/phase-overrun": (use_numbers,),
    "sync/phase-missed": (use_numbers,),
    "sync/phase-drift": (use_numbers,),
    "sync/wait-ahead": (use_numbers,),
    "sync/negative-use": (use_numbers,),
    "sync/copy-unawaited": (wait_for_data, use_numbers),
    **{rule: makers for rule, makers in MORE.items() if "/" in rule},
    "data/cp-async-wait-count": (*MORE["data/cp-async-wait-count"], use_numbers),
}
