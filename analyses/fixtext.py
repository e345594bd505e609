"""Text edits for repairs: a program as lines with indentation, enclosing blocks and roles, and edits that keep them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from cake_ir.diagnostics import Edit, Span

STEP = "    "


def apply(text: str, edits: tuple[Edit, ...]) -> str:
    """The text after all edits; spans refer to the text before any of them and do not overlap."""
    starts = [0]
    for line in text.split("\n"):
        starts.append(starts[-1] + len(line) + 1)

    def at(line: int, col: int) -> int:
        return min(starts[min(line, len(starts)) - 1] + col - 1, len(text))

    for e in sorted(edits, key=lambda e: (e.span.line, e.span.col, e.span.end_line), reverse=True):
        text = text[: at(e.span.line, e.span.col)] + e.new + text[at(e.span.end_line, e.span.end_col) :]
    return text


def places(source: Source, edits: tuple[Edit, ...]) -> str:
    """Where edits go, for people: 'before line 22: `store(y[cta, :], v)`', 'in line 7', 'lines 4 to 6 go'."""
    found = []
    for e in sorted(edits, key=lambda e: (e.span.line, e.span.col)):
        first, last = e.span.line, e.span.end_line - (e.span.end_col == 1 and e.span.end_line > e.span.line)
        if e.span.end_line == first and e.span.end_col == e.span.col:
            found.append(_beside(source, e))
        elif e.new:
            found.append(f"in line {first}")
        else:
            found.append(f"line {first} goes" if first == last else f"lines {first} to {last} go")
    return "; ".join(dict.fromkeys(found))


def _beside(source: Source, e: Edit) -> str:
    """The neighbour that stands at the indentation of an inserted line, the next one first."""
    n = e.span.line
    depth = len(e.new.strip("\n")) - len(e.new.strip("\n").lstrip(" "))
    above = next((i for i in range(n - 1 if e.span.col == 1 else n, 0, -1) if source.line(i)), 0)
    before = e.span.col == 1 and source.line(n) and (source.indent(n) == depth or not above)
    at, word = (n, "before") if before else (above, "after")
    code = source.line(at)
    return f"{word} line {at}: `{code if len(code) <= 60 else code[:59] + '…'}`"


@dataclass(frozen=True)
class Source:
    """A program text, 1-based lines."""

    text: str

    @cached_property
    def lines(self) -> list[str]:
        return ["", *self.text.split("\n")]

    def line(self, n: int) -> str:
        """Line n without indentation and comment-free only as far as the author wrote it so."""
        return self.lines[n].strip() if 0 < n < len(self.lines) else ""

    def indent(self, n: int) -> int:
        """Columns of indentation of line n; blank lines inherit from the next."""
        while n < len(self.lines) and not self.lines[n].strip():
            n += 1
        return len(self.lines[n]) - len(self.lines[n].lstrip(" ")) if n < len(self.lines) else 0

    def parents(self, n: int) -> list[int]:
        """Header lines of the blocks around line n, innermost first."""
        found, depth = [], self.indent(n)
        for i in range(n - 1, 0, -1):
            if self.lines[i].strip() and not self.lines[i].lstrip().startswith("#") and self.indent(i) < depth:
                # continuation lines of a signature are not headers
                if self.lines[i].rstrip().endswith(":"):
                    found.append(i)
                depth = self.indent(i)
        return found

    def outside(self, n: int, *headers: str) -> int:
        """The line itself, or the header of the innermost of the given blocks directly around it."""
        for p in self.parents(n):
            if any(self.line(p).startswith(h) for h in headers):
                n = p
            else:
                break
        return n

    def last(self, n: int) -> int:
        """The last line of the block that the header at line n opens (or of the statement, when it is none)."""
        depth, end = self.indent(n), n
        for i in range(n + 1, len(self.lines)):
            if not self.lines[i].strip():
                continue
            if self.indent(i) <= depth:
                break
            end = i
        return end

    def statement_end(self, n: int) -> int:
        """The last line of a statement that may be broken inside brackets."""
        depth, i = 0, n
        while i < len(self.lines):
            code = self.lines[i].split("#")[0]
            depth += sum(code.count(c) for c in "([{") - sum(code.count(c) for c in ")]}")
            if depth <= 0:
                return i
            i += 1
        return n

    def kernel(self, n: int) -> tuple[int, int]:
        """(first, last) line of the function around line n."""
        first = max((i for i in range(1, n + 1) if self.lines[i].startswith("def ")), default=1)
        rest = (i for i in range(first + 1, len(self.lines)) if self.lines[i] and self.lines[i][0] not in " \n)#")
        return first, next(rest, len(self.lines)) - 1

    def role_lines(self, role: str, around: int) -> list[int]:
        """Lines inside blocks of a role in the kernel around a line."""
        first, end = self.kernel(around)
        found = []
        for i in range(first, end + 1):
            if re.match(rf"with {re.escape(role)}\b", self.line(i)):
                found += range(i + 1, self.last(i) + 1)
        return found

    def find(self, pattern: str, lines: list[int]) -> list[int]:
        """Those of the lines whose code matches."""
        return [i for i in lines if re.search(pattern, self.line(i))]

    # ---- edits

    def before(self, n: int, *statements: str) -> Edit:
        """Insert statements above line n, at its indentation. A statement may start with own indentation."""
        pad = " " * self.indent(n)
        return Edit(span=Span(line=n, col=1, end_line=n, end_col=1), new="".join(f"{pad}{s}\n" for s in statements))

    def after(self, n: int, *statements: str, like: int | None = None) -> Edit:
        """Insert statements below line n (below its block), at the indentation of line `like` (default n)."""
        pad = " " * self.indent(like or n)
        new = "".join(f"{pad}{s}\n" for s in statements)
        if n + 1 >= len(self.lines):  # the text does not end with a line break
            col = len(self.lines[n]) + 1
            return Edit(span=Span(line=n, col=col, end_line=n, end_col=col), new="\n" + new.rstrip("\n"))
        return Edit(span=Span(line=n + 1, col=1, end_line=n + 1, end_col=1), new=new)

    def replace(self, n: int, old: str, new: str, count: int = 1) -> Edit | None:
        """Replace the first occurrence of `old` on line n; None when it is not there."""
        col = self.lines[n].find(old) + 1
        if col == 0:
            return None
        return Edit(span=Span(line=n, col=col, end_line=n, end_col=col + len(old)), new=new)

    def delete(self, first: int, last: int | None = None) -> Edit:
        """Delete whole lines."""
        end = (last or first) + 1
        return Edit(span=Span(line=first, col=1, end_line=end, end_col=1), new="")

    def move(self, first: int, last: int, below: int) -> tuple[Edit, ...]:
        """Move lines first..last below line `below`, at its indentation."""
        pad, own = " " * self.indent(below), self.indent(first)
        moved = "".join(f"{pad}{self.lines[i][own:]}\n" for i in range(first, last + 1))
        return (
            self.delete(first, last),
            Edit(span=Span(line=below + 1, col=1, end_line=below + 1, end_col=1), new=moved),
        )


def call_argument(code: str, name: str) -> str | None:
    """The text of `name=...` in a call on one line."""
    m = re.search(rf"\b{name}=", code)
    if m is None:
        return None
    depth, i = 0, m.end()
    while i < len(code):
        c = code[i]
        if c in "([{":
            depth += 1
        elif c in ")]}":
            if depth == 0:
                break
            depth -= 1
        elif c == "," and depth == 0:
            break
        i += 1
    return code[m.end() : i].strip()


def index_of(code: str, name: str) -> str | None:
    """The text between the brackets of the first `name[...]`."""
    m = re.search(rf"\b{re.escape(name)}\[", code)
    if m is None:
        return None
    depth, i = 1, m.end()
    while i < len(code) and depth:
        depth += {"[": 1, "]": -1}.get(code[i], 0)
        i += 1
    return code[m.end() : i - 1] if depth == 0 else None


def indices(code: str) -> list[tuple[str, str]]:
    """All `name[index]` of a line, outermost."""
    found = []
    for m in re.finditer(r"\b([A-Za-z_]\w*)\[", code):
        inner = index_of(code[m.start() :], m.group(1))
        if inner is not None:
            found.append((m.group(1), inner))
    return found
