"""Candidate repairs of the protocol: ops on barriers that stand twice, at the wrong place, or name the wrong barrier.

Where an op belongs follows from what its barrier hands over. The tiles of a barrier are those that copies fill which signal
it, else those that its arriving roles use with the same use number. A wait belongs before the first statement of its role
that touches them, an arrival or commit behind the last, an expectation before the copies. Suspects are the ops that the
finding names, then the other ops on its barrier; each has a handful of such places, and one that stands there already has none.

Limits: places are found by the text of use numbers; control that only numbers decide (`if k > 0`) shows through another op on
the same barrier that stands there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from analyses.fixtext import Source, call_argument, index_of
from cake_ir.diagnostics import Diagnostic, Edit, Span

BARRIERS = ("mbarrier", "named_barrier")
TILES = ("smem", "tmem")
LATE = ("arrive", "tcgen05_commit", "cp_async_arrive")
MAX_SUSPECTS = 5


@dataclass(frozen=True)
class Statement:
    """A simple statement. role: of the block around it, None at kernel level. bar, index: of the barrier it works on or signals;
    tiles: name -> texts of use numbers ('' for an unstaged tile)."""

    line: int
    end: int
    role: str | None
    code: str
    op: str
    bar: str
    index: str
    signals: bool
    tiles: tuple[tuple[str, str], ...]

    def touches(self, names: set[str], base: str) -> bool:
        return any(n in names and (not at or base_of(at) == base) for n, at in self.tiles)


def base_of(index: str) -> str:
    """A use number without what is added to it: `n - STAGES + s` is `n`."""
    while (less := re.sub(r"\s*[+-]\s*\w+$", "", index)) != index and less:
        index = less
    return index


def statements(f: Any, around: int) -> list[Statement]:
    """The simple statements of the kernel around a line, in text order."""
    first, last = f.src.kernel(around)
    first = f.src.statement_end(first)
    roles: dict[int, str] = {}
    for role in f.roles:
        roles |= dict.fromkeys(f.src.role_lines(role, around), role)
    found, n = [], first + 1
    while n <= last:
        end = f.src.statement_end(n)
        if f.src.line(n) and not f.src.line(n).endswith(":") and not f.src.line(n).startswith("#"):
            found.append(_statement(f, n, end, roles.get(n)))
        n = end + 1
    return found


def _statement(f: Any, n: int, end: int, role: str | None) -> Statement:
    code = " ".join(f.src.line(i) for i in range(n, end + 1))
    m = re.match(r"(?:[\w, ]+ = )?(\w+)\(", code)
    op = m.group(1) if m else ""
    signal = call_argument(code, "signal")
    target = signal if signal is not None else code[m.end() :] if m and re.match(r"\w+\(", code) else ""
    name = re.match(r"(\w+)\[", target)
    bar = name.group(1) if name and f.rings.get(name.group(1), ("",))[0] in BARRIERS else ""
    tiles = [
        (t, index_of(code, t) or "")
        for t, (kind, _) in f.rings.items()
        if kind in TILES and op not in TILES and re.search(rf"\b{t}\b", code)
    ]
    return Statement(
        n, end, role, code, op, bar, (index_of(target, bar) or "") if bar else "", signal is not None, tuple(tiles)
    )


class Protocol:
    """Who hands over which tiles through which barrier, read from the text."""

    def __init__(self, f: Any, around: int) -> None:
        self.f, self.src = f, f.src
        self.all = statements(f, around)
        self.at = {s.line: s for s in self.all}

    def on(self, bar: str, *ops: str) -> list[Statement]:
        return [s for s in self.all if bar and s.bar == bar and not s.signals and (not ops or s.op in ops)]

    def copies(self, bar: str) -> list[Statement]:
        return [s for s in self.all if bar and s.bar == bar and s.signals]

    def tiles(self, bar: str) -> set[str]:
        """What the barrier hands over."""
        copies = self.copies(bar)
        if copies:
            return {s.tiles[0][0] for s in copies if s.tiles}
        given, taken = (
            {
                n
                for s in self.on(bar, *ops)
                for t in self.all
                if t.role == s.role and (s.op != "tcgen05_commit" or t.op == "tcgen05_mma")
                for n, at in t.tiles
                if at and base_of(at) == base_of(s.index)
            }
            for ops in (LATE, ("wait",))
        )
        return given & taken or taken or given

    def waiters(self, bar: str) -> list[str]:
        """Roles that should wait: they touch the tiles and do not themselves complete the barrier."""
        givers = {s.role for s in self.on(bar, *LATE, "expect")} | {s.role for s in self.copies(bar)}
        tiles = self.tiles(bar)
        users = [r for r in self.f.roles if any(s.role == r and {n for n, _ in s.tiles} & tiles for s in self.all)]
        return [r for r in users if r not in givers] or users

    # ---- places

    def homes(self, s: Statement) -> Iterator[Edit]:
        """Where the op may belong, the likeliest first."""
        tiles, base = self.tiles(s.bar), base_of(s.index)
        if s.op == "wait":
            own = [s.role] if s.role in self.f.roles else []
            wanted = self.waiters(s.bar)
            for role in [*(r for r in own if r in wanted), *(r for r in wanted if r not in own)]:
                users = [t for t in self.all if t.role == role and t is not s and t.touches(tiles, base)]
                exact = [t for t in users if any(n in tiles and at in ("", s.index) for n, at in t.tiles)]
                for t in dict.fromkeys([*exact[:1], *users[:1], *exact[1:2]]):
                    first = self._announced(t, base)
                    yield from (self.src.before(p, "{}") for p in self.climb(first, base))
        elif s.op == "expect":
            for t in [t for t in self.copies(s.bar) if base_of(t.index) == base][:1]:
                yield from (self.src.before(p, "{}") for p in self.climb(t, base))
        else:
            yield from self._behind(s, tiles, base)

    def _announced(self, t: Statement, base: str) -> Statement:
        """The expectation right above a copy: a wait for the slot comes before both."""
        for e in self.all:
            if e.op == "expect" and e.role == t.role and e.line < t.line and base_of(e.index) == base and t.signals:
                if e.bar == t.bar and t.line - e.line <= 3:
                    return e
        return t

    def _behind(self, s: Statement, tiles: set[str], base: str) -> Iterator[Edit]:
        own = [s.role] if s.role in self.f.roles else []
        for role in [*own, *(r for r in self.f.roles if r not in own)]:
            users = [t for t in self.all if t.role == role and t.touches(tiles, base) and t is not s and not t.signals]
            for t in users[-1:]:
                for p in self.climb(t, base):
                    end = self.src.last(p) if self.src.line(p).endswith(":") else self.src.statement_end(p)
                    later = [x for x in self.all if x.line > end and x.role == role]
                    for x in later[:4]:
                        same = self.src.parents(x.line)[:1] == self.src.parents(p)[:1]
                        if same and re.match(r"(wgmma|tmem_load)_wait|fence_async", x.code):
                            end = x.end
                    yield self.src.after(end, "{}", like=p)
                    if not t.op.startswith(("wgmma", "tcgen05")):
                        yield self.src.after(end, "fence_async()", "{}", like=p)

    def climb(self, t: Statement, base: str) -> list[int]:
        """Lines that stand for a statement in the blocks around it in which its use number stays the same."""
        found, loops = [t.line], t.line
        through = True
        for p in self.src.parents(t.line):
            head = self.src.line(p)
            if re.match(rf"with (?:{'|'.join(self.f.roles) or '-'})\b", head):
                break
            if head.startswith("for "):
                body = range(p + 1, self.src.last(p) + 1)
                if re.search(rf"\b{base}\b", head.split(" in ")[0]) or self.src.find(rf"^{base} \+?= ", list(body)):
                    break
            found.append(p)
            through = through and head.startswith(("for ", "with elected", "with warps"))
            if through:
                loops = p
        return list(dict.fromkeys([loops, found[-1], *found]))[:4]

    def alone(self, s: Statement) -> bool:
        """Whether an arrival at one CTA stands apart from the one at the other, while others of them stand together."""
        return ".on(" in s.code and not any(self._beside(s, t) for t in self.on(s.bar, s.op))

    def _beside(self, s: Statement, t: Statement) -> bool:
        return (t.line == s.end + 1 or t.end + 1 == s.line) and self.src.indent(t.line) == self.src.indent(s.line)

    def twins(self, s: Statement) -> list[Statement]:
        """The other ops of its kind on its barrier, those first that lack a neighbour."""
        found = [t for t in self.on(s.bar, s.op) if t is not s]
        return sorted(found, key=lambda t: (not self.alone(t), t.role != s.role))

    def unit(self, s: Statement) -> tuple[int, int]:
        """(first, last) line to take away: the statement with the blocks that hold nothing else."""
        first, last = s.line, s.end
        for p in self.src.parents(s.line):
            inside = [i for i in range(p + 1, self.src.last(p) + 1) if self.src.line(i)]
            if inside[0] < first or inside[-1] > last or self.src.line(p).startswith(("def ", "else")):
                break
            first = p
        return first, last

    def moved(self, s: Statement, place: Edit, wrapped: bool, guards: bool = False) -> tuple[Edit, ...] | None:
        """The op taken away and put at a place; None where it stands there. wrapped: with the elected() around it alone;
        guards: with its conditions too."""
        first, last = self.unit(s)
        top, n = s.line, place.span.line
        if wrapped:
            while (p := _parent(self.src, top)) >= first and self.src.line(p).startswith(
                ("with elected", "if ") if guards else "with elected"
            ):
                top = p
        own, new = self.src.indent(top), place.new.lstrip("\n")
        pad = new[: len(new) - len(new.lstrip(" "))]
        if first <= n <= last + 1 and len(pad) == own and "fence" not in new:
            return None
        lines = "".join(f"{pad}{self.src.lines[i][own:]}\n" for i in range(top, last + 1))
        text = (
            place.new.replace(f"{pad}{{}}\n", lines) if f"{pad}{{}}\n" in place.new else place.new.replace("{}", s.code)
        )
        if first < n <= last:
            return None
        return self.src.delete(first, last), Edit(span=place.span, new=text)


def _parent(src: Source, n: int) -> int:
    """The header of the block around a line, 0 at kernel level."""
    return next(iter(src.parents(n)), 0)


def _candidate(title: str, edits: Any) -> Iterator[Any]:
    from analyses.fixrules import Candidate

    if edits and all(e is not None for e in edits):
        yield Candidate(title, tuple(edits))


def suspects(p: Protocol, d: Diagnostic) -> list[Statement]:
    """Ops on barriers that the finding names, then those on its barrier or on the barriers of its tile."""
    named = [d.span.line, *(r.span.line for r in d.related), *(s.span.line for s in d.evidence)]
    found = [s for n in named if (s := p.at.get(n)) and s.bar and not s.signals]
    name = d.subject.resource or ""
    bars = [name] if p.on(name) else [b for b in p.f.rings if p.on(b) and name in p.tiles(b)]
    bars += [s.bar for n in named if (s := p.at.get(n)) and s.bar]
    bars += [b for b in re.findall(r"waits in (\w+)\[", d.message) if b in p.f.rings]
    found += [s for b in dict.fromkeys(bars) for s in p.on(b)]
    return list(dict.fromkeys(found))


def twice(f: Any, d: Diagnostic) -> Iterator[Any]:
    """An op on a barrier that stands twice in its role, word for word, one of them with its neighbours."""
    p = Protocol(f, d.span.line)
    for s in suspects(p, d)[: 2 * MAX_SUSPECTS]:
        same = [t for t in p.all if t.code == s.code and t.role == s.role]
        blocks = {_parent(f.src, t.line) for t in same}
        if len(same) > 1 and s is not same[0] and (len(blocks) < len(same) or f.rings[s.bar][0] == "mbarrier"):
            yield from _candidate(f"once is enough: {s.code}", [f.src.delete(*p.unit(s))])


def other_barrier(f: Any, d: Diagnostic) -> Iterator[Any]:
    """An op that names a barrier which lacks nothing, while another one lacks this very op."""
    p = Protocol(f, d.span.line)
    named = suspects(p, d)
    for b in (n for n, (kind, _) in f.rings.items() if kind == "mbarrier"):
        for ops in (("wait",), ("expect",), LATE):
            if p.on(b, *ops) or (ops == LATE and p.on(b, "expect")):
                continue
            others = [
                s
                for s in p.all
                if s.op in ops and s.bar in f.rings and not s.signals and f.rings[s.bar][0] == "mbarrier"
            ]
            for s in sorted(others, key=lambda s: (s not in named, s.line)):
                if s in named or len(p.on(s.bar, *ops)) > 1:
                    yield from _candidate(f"{s.op} on {b}, not {s.bar}", [f.src.replace(s.line, f"{s.bar}[", f"{b}[")])
    for s in (s for s in named if s.op == "wait" and s.role and s.role not in p.waiters(s.bar)):
        for b in (n for n, (kind, _) in f.rings.items() if kind == "mbarrier" and n != s.bar):
            if s.role in p.waiters(b):
                yield from _candidate(f"wait on {b}, not {s.bar}", [f.src.replace(s.line, f"{s.bar}[", f"{b}[")])
    at = p.at.get(d.span.line)
    if at is not None and at.signals:  # a copy: its role expects the bytes elsewhere
        for e in p.all:
            if e.op == "expect" and e.role == at.role and e.bar != at.bar:
                for n in range(at.line, at.end + 1):
                    edit = f.src.replace(n, f"signal={at.bar}[{at.index}]", f"signal={e.bar}[{e.index}]")
                    if edit is not None:
                        yield from _candidate(f"signal what is expected: {e.bar}[{e.index}]", [edit])
        if d.rule == "derive/unexpected-bytes" and ", multicast=cluster" in f.src.line(at.end):
            yield from _candidate("copy to this CTA alone", [f.src.replace(at.end, ", multicast=cluster", "")])


def other_receiver(f: Any, d: Diagnostic) -> Iterator[Any]:
    """An arrival in the wrong CTA of a cluster: with the rank that its neighbour lacks, or without."""
    p = Protocol(f, d.span.line)
    for s in suspects(p, d):
        if s.op not in LATE:
            continue
        rank = re.search(rf"{re.escape(s.bar)}\[{re.escape(s.index)}\](\.on\((\w+)\))?", s.code)
        if rank is None:
            continue
        plain, mine = f"{s.bar}[{s.index}]", rank.group(2)
        others = [r for t in p.twins(s) for r in re.findall(r"\.on\((\w+)\)", t.code) if t.index == s.index]
        if others and mine not in others and mine is not None:
            continue  # the two of a pair
        for r in dict.fromkeys([*("1" if r == "0" else "0" for r in others), *others, *("01" if mine else "")]):
            if r != mine:
                yield from _candidate(
                    f"arrive in CTA {r} of the cluster: {plain}.on({r})",
                    [f.src.replace(s.line, rank.group(0), f"{plain}.on({r})")],
                )
        if mine and not others:
            yield from _candidate(f"arrive in this CTA: {plain}", [f.src.replace(s.line, rank.group(0), plain)])


def pairs(f: Any, d: Diagnostic) -> Iterator[Any]:
    """Arrivals at the CTAs of a cluster that stand together elsewhere: of two that stand alone, one moves to the other."""
    p = Protocol(f, d.span.line)
    alone = [s for s in suspects(p, d) if s.op in LATE and p.alone(s)]
    for s in alone:
        for t in alone:
            if s is not t and s.bar == t.bar and s.code != t.code:
                edits = p.moved(s, f.src.after(t.end, "{}", like=t.line), False)
                yield from _candidate(f"beside its twin: {s.code}", edits)


def misplaced(f: Any, d: Diagnostic) -> Iterator[Any]:
    """An op on a barrier away from what the barrier hands over."""
    p = Protocol(f, d.span.line)
    seen: set[tuple[Any, ...]] = set()
    alone = [s for s in suspects(p, d) if s.op in LATE and p.alone(s)]
    for s in list(dict.fromkeys([*alone, *suspects(p, d)]))[:MAX_SUSPECTS]:
        if f.rings[s.bar][0] != "mbarrier":
            continue
        places = [(e, True) for e in p.homes(s)]
        near = [(f.src.after(t.end, "{}", like=t.line), False) for t in p.twins(s)[:2]]
        for place, wrapped in [*near, *places] if s.op in LATE and near else [*places, *near]:
            edits = p.moved(s, place, wrapped)
            key = (s.line, place.span.line, place.new)
            if edits is not None and key not in seen:
                seen.add(key)
                fence = "behind a fence, " if "fence_async" in place.new else ""
                yield from _candidate(f"{fence}where its data are used: {s.code}", edits)
        yield from _elected(f, p, s)


def _elected(f: Any, p: Protocol, s: Statement) -> Iterator[Any]:
    """An arrival by one thread where all are counted."""
    top = _parent(f.src, s.line)
    if s.op == "arrive" and f.src.line(top).startswith("with elected") and p.unit(s)[0] <= top:
        pad = " " * f.src.indent(top)
        span = Span(line=top, col=1, end_line=s.end + 1, end_col=1)
        yield from _candidate(f"by all, not by one thread: {s.code}", [Edit(span=span, new=f"{pad}{s.code}\n")])


def turns(f: Any, d: Diagnostic) -> Iterator[Any]:
    """Rounds of a named barrier that do not close. Who takes the turn holds it over the products up to where it is passed on; where
    the neighbour of one op stands again without it, it is missing."""
    p = Protocol(f, d.span.line)
    named = [s for s in p.all if s.bar and f.rings[s.bar][0] == "named_barrier"]
    bars = {s.bar for s in suspects(p, d)}
    mine = [s for s in named if s.bar in bars]
    done: set[str] = set()
    for s in mine:  # what opens or closes the rounds of a kernel stands at the ends of the role
        lines = f.src.role_lines(s.role, s.line) if s.role else []
        if lines and f.src.line(_parent(f.src, s.line)).startswith("if "):
            block = next((h for h in f.src.parents(lines[-1]) if f.src.line(h).startswith(f"with {s.role}")), lines[0])
            end = f.src.after(lines[-1], "{}", like=block + 1)
            place = f.src.before(lines[0], "{}") if s.op == "arrive" else end
            edits = p.moved(s, place, True, True)
            if edits is not None:
                yield from _candidate(f"open or close the rounds here: {s.code}", edits)
    for place, op, near in [*_sections(p, mine), *_gaps(p, mine)]:
        for stray in [x for x in mine if x.op == op and x is not near]:
            edits = p.moved(stray, place, False)
            if edits is not None and str(edits) not in done:
                done.add(str(edits))
                yield from _candidate(f"take or pass the turn here: {stray.code}", edits)
        codes = dict.fromkeys(x.code for x in mine if x.op == op)
        name = re.search(rf"with {near.role} as (\w+)", f.src.text)
        if op == "sync" and name:
            codes[f"sync({near.bar}[{name.group(1)}])"] = None
        for code in codes:
            new = place.model_copy(update={"new": place.new.format(code)})
            if str(new) not in done:
                done.add(str(new))
                yield from _candidate(f"take or pass the turn here: {code}", [new])


def _sections(p: Protocol, mine: list[Statement]) -> Iterator[tuple[Edit, str, Statement]]:
    """Products with only one end of their section: where the other end belongs, (place, op, the end that is there)."""
    for s in mine:
        block = [t for t in p.all if t.role == s.role and p.src.parents(t.line)[:1] == p.src.parents(s.line)[:1]]
        at = block.index(s)
        if s.op == "arrive":
            above = block[:at]
            cut = max((i for i, t in enumerate(above) if t in mine), default=-1)
            products = [t for t in above[cut + 1 :] if re.search(r"\b(wgmma|mma|tcgen05_mma)\(", t.code)]
            if products and (cut < 0 or above[cut].op != "sync"):
                yield p.src.before(products[0].line, "{}"), "sync", s
        else:
            below = block[at + 1 :]
            cut = min((i for i, t in enumerate(below) if t in mine), default=len(below))
            ends = [t for t in below[:cut] if re.match(r"wgmma_commit|tcgen05_commit|mma\(", t.code)]
            if ends and (cut == len(below) or below[cut].op != "arrive"):
                yield p.src.after(ends[-1].end, "{}", like=ends[-1].line), "arrive", s


def _gaps(p: Protocol, mine: list[Statement]) -> Iterator[tuple[Edit, str, Statement]]:
    for s in mine:
        for near, behind in ((_above(p, s), True), (_below(p, s), False)):
            for t in p.all if near is not None else ():
                if near is None or t.role != s.role or t.line == near.line or t.op != near.op:
                    continue
                beside = _below(p, t) if behind else _above(p, t)
                if beside is None or beside.bar != s.bar:
                    place = p.src.after(t.end, "{}", like=t.line) if behind else p.src.before(t.line, "{}")
                    yield place, s.op, s


def _above(p: Protocol, s: Statement) -> Statement | None:
    before = [t for t in p.all if t.line < s.line and t.role == s.role]
    return before[-1] if before else None


def _below(p: Protocol, s: Statement) -> Statement | None:
    return next((t for t in p.all if t.line > s.line and t.role == s.role), None)


def as_touched(f: Any, d: Diagnostic) -> Iterator[Any]:
    """A wait for another use of a ring than the one that its role touches next."""
    p = Protocol(f, d.span.line)
    for s in suspects(p, d)[:MAX_SUSPECTS]:
        if s.op == "wait" and p.copies(s.bar):
            tiles = p.tiles(s.bar)
            after = (t for t in p.all if t.role == s.role and t.line > s.line and not t.signals)
            use = next((at for t in after for n, at in t.tiles if n in tiles and at), s.index)
            if use != s.index:
                yield from _candidate(
                    f"wait for the use that is touched: {s.bar}[{use}]",
                    [f.src.replace(s.line, f"{s.bar}[{s.index}]", f"{s.bar}[{use}]")],
                )


def turn_index(f: Any, d: Diagnostic) -> Iterator[Any]:
    """An index of a named barrier that leaves it: what its other ops say."""
    p = Protocol(f, d.span.line)
    s = p.at.get(d.span.line)
    if s is None or not s.bar:
        return
    role = re.search(rf"with {s.role} as (\w+)", f.src.text)
    options = [base_of(s.index), *(role.groups() if role else ()), *(t.index for t in p.on(s.bar))]
    for at in dict.fromkeys(o for o in options if o != s.index):
        yield from _candidate(
            f"{s.bar}[{at}], not {s.bar}[{s.index}]",
            [f.src.replace(s.line, f"{s.bar}[{s.index}]", f"{s.bar}[{at}]")],
        )


def counter_step(f: Any, d: Diagnostic) -> Iterator[Any]:
    """A counter of uses that does not advance by one."""
    first, last = f.src.kernel(d.span.line)
    for n in f.src.find(r"^\w+ \+= (?!1$)", list(range(first, last + 1))):
        name, _, step = f.src.line(n).partition(" += ")
        yield from _candidate(f"one use at a time: {name} += 1", [f.src.replace(n, f"+= {step}", "+= 1")])


def equal_stages(f: Any, d: Diagnostic) -> Iterator[Any]:
    """A barrier with fewer or more slots than the tiles that it hands over."""
    p = Protocol(f, d.span.line)
    name = d.subject.resource or ""
    bars = [name] if p.on(name) else [b for b in f.rings if p.on(b) and name in p.tiles(b)]
    for b in bars:
        depths = {f.stages(t) for t in p.tiles(b)}
        depth = next(iter(depths), "1")
        lines = range(*f.src.kernel(d.span.line))
        for n in f.src.find(rf"^{b} = (mbarrier|named_barrier)\(", list(lines)):
            old = call_argument(f.src.line(n), "stages")
            if len(depths) != 1 or depth == (old or "1"):
                continue
            if old is not None:
                edit = f.src.replace(n, f"stages={old}", f"stages={depth}")
            else:
                comma = "" if f.src.line(n).endswith("()") else ", "
                edit = f.src.replace(n, "mbarrier(", f"mbarrier(stages={depth}{comma}")
            yield from _candidate(f"as many slots as its tiles: stages={depth}", [edit])


_TRAFFIC = (
    "derive/unequal-arrivals",
    "derive/asserted-arrivals",
    "derive/double-expect",
    "derive/expect-without-copies",
    "derive/no-arrival",
    "derive/unexpected-bytes",
    "sync/deadlock",
    "sync/over-arrival",
    "sync/phase-missed",
    "sync/phase-overrun",
    "sync/use-not-advanced",
    "sync/wait-ahead",
)
_ORDER = (
    "data/overwritten-while-read",
    "data/read-before-arrival",
    "data/released-before-read",
    "data/slot-reuse-without-wait",
    "data/tcgen05-commit-missing",
)
FIRST: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(_TRAFFIC, (pairs, twice, as_touched, equal_stages, counter_step, other_barrier)),
    **dict.fromkeys(_ORDER, (as_touched, equal_stages, counter_step, other_barrier)),
    "derive/named-index": (turn_index,),
}
PLACES: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(_TRAFFIC, (other_receiver, misplaced)),
    **dict.fromkeys(_ORDER, (misplaced,)),
    "sync/deadlock": (turns, other_receiver, misplaced),
    "sync/named-overrun": (twice, turns),
    "sync/named-left-open": (twice, turns),
}
