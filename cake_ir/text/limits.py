"""The gate in front of `ast`: one linear pass that turns away what the Python parser must never see.

`ast.parse` can take seconds and gigabytes on deep or huge input. This scanner reads the text with one regular
expression, without recursion, and bounds everything that recursion follows later: brackets, blocks, operator chains,
postfix chains and `elif` chains. It also collects the comments, which `ast` drops, by logical line.

All findings have family "language" and one of the rules `language/size`, `/encoding`, `/character`, `/line-length`,
`/tokens`, `/depth`, `/number`, `/string`, `/name`, `/syntax`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from cake_ir.diagnostics import Diagnostic, Span, error
from cake_ir.effort import spend
from cake_ir.syntax import MAX_INT, UNSAFE_CHARS

MAX_BYTES = 256 * 1024
MAX_DEPTH = 64
MAX_TOKENS = 32_768
MAX_LINE = 1_000
MAX_NUMBER = 80  # characters; 64 binary digits with separators fit
MAX_NAME = 64
MAX_FINDINGS = 20

_TOKEN = re.compile(
    r"""[ ]*(?:
      (?P<name>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<num>(?:[0-9]|\.[0-9])(?:[eE][+-](?=[0-9])|[A-Za-z0-9_.])*)
    | (?P<open>[([{])
    | (?P<close>[)\]}])
    | (?P<comma>,)
    | (?P<dot>\.)
    | (?P<nl>\n|\Z)
    | (?P<op>\*\*=?|//=?|<<=?|>>=?|->|:=|[=!<>]=|[-+*/%&|^@]=?|[<>=~:])
    | (?P<comment>\#[^\n]*)
    | (?P<str>\"{3}(?:[^"\\]|\\.|\"(?!\"\"))*\"{3}|'{3}(?:[^'\\]|\\.|'(?!''))*'{3}
             |\"(?:[^"\\\n]|\\[^\n])*\"(?!\")|'(?:[^'\\\n]|\\[^\n])*'(?!'))
    | (?P<bad>.)
    )""",
    re.VERBOSE | re.DOTALL,
)
# A number token must then be one of these; so "1if" and "0x1for", about which Python only warns, are refused.
_NUMBER = re.compile(
    r"(?:0|[1-9](?:_?[0-9])*)|0[xX](?:_?[0-9a-fA-F])+|0[bB](?:_?[01])+|0[oO](?:_?[0-7])+"
    r"|(?:[0-9](?:_?[0-9])*)?\.[0-9](?:_?[0-9])*(?:[eE][+-]?[0-9]+)?|[0-9](?:_?[0-9])*\.(?:[eE][+-]?[0-9]+)?"
    r"|[0-9](?:_?[0-9])*[eE][+-]?[0-9]+"
)
_ESCAPE = re.compile(r"\\(?:([\\'\"])|.)", re.DOTALL)
_CLOSES = {")": "(", "]": "[", "}": "{"}
_OPERATOR_WORDS = frozenset("and or not if else in is for await lambda as async yield from".split())


@dataclass
class LogicalLine:
    """One statement header with its comments: the lines above (and inside) it, and the one behind it."""

    first: int = 0
    last: int = 0
    above: list[str] = field(default_factory=list)
    tail: str = ""


@dataclass(frozen=True)
class Scan:
    """What the gate learned. `lines` is in text order; `ending` holds comment lines behind the last statement."""

    lines: tuple[LogicalLine, ...]
    ending: tuple[str, ...]
    diagnostics: tuple[Diagnostic, ...]


def decode(source: str | bytes) -> tuple[str, Diagnostic | None]:
    """Source as text within the size limit. A 10 MB source is turned away by its length alone."""
    size = len(source)
    if size <= MAX_BYTES and isinstance(source, str) and not source.isascii():
        size = len(source.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        return "", _finding(
            "size", f"the program has {size} bytes; at most {MAX_BYTES} are read. Split it into several files.", 1, 1
        )
    if isinstance(source, str):
        return source, None
    try:
        return source.decode("utf-8"), None
    except UnicodeDecodeError as fault:
        good = source[: fault.start]
        line_start = good.rfind(b"\n") + 1
        return "", _finding(
            "encoding",
            f"byte 0x{source[fault.start]:02x} is not UTF-8; save the file as UTF-8",
            good.count(b"\n") + 1,
            len(good[line_start:].decode("utf-8")) + 1,
        )


def scan(text: str) -> Scan:
    """Read `text` once. If `diagnostics` is not empty, `text` must not be given to `ast`."""
    early = _check_characters(text)
    if early:
        return Scan((), (), tuple(early))
    return _Scanner(text).run()


def _finding(rule: str, message: str, line: int, col: int, width: int = 1) -> Diagnostic:
    span = Span(line=line, col=col, end_line=line, end_col=col + width)
    return error(f"language/{rule}", "language", message, span)


def _check_characters(text: str) -> list[Diagnostic]:
    """Forbidden characters and long lines. `\\r\\n` line ends pass; they count as one."""
    found: list[Diagnostic] = []
    for match in UNSAFE_CHARS.finditer(text):
        char, at = match.group(), match.start()
        if char == "\r" and text.startswith("\n", at + 1):
            continue
        line, col = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
        if char == "\t":
            what = "a tab; indent with four spaces"
        elif char == "\x00":
            what = "a NUL byte; the file is not text"
        else:
            what = f"the character U+{ord(char):04X}, which is invisible or reorders text; remove it"
        found.append(_finding("character", f"the text holds {what}", line, col))
        if len(found) == MAX_FINDINGS:
            return found
    if len(text) > MAX_LINE:
        for number, line_text in enumerate(text.split("\n"), 1):
            if len(line_text) > MAX_LINE:
                message = (
                    f"the line has {len(line_text)} characters; at most {MAX_LINE} are read. Break it inside brackets."
                )
                found.append(_finding("line-length", message, number, MAX_LINE + 1))
                if len(found) == MAX_FINDINGS:
                    break
    return found


class _Level:
    """Height of the expression under one bracket, counted from its operators and operands.

    A segment ends at a comma. Its height is its highest operand plus its number of operators, which bounds the height
    of the tree whatever the precedence; an operand is 1 high and each attribute, call or index behind it adds 1.
    """

    __slots__ = ("bracket", "col", "current", "highest", "line", "operand", "ops", "sticky")

    def __init__(self, bracket: str, line: int, col: int) -> None:
        self.bracket, self.line, self.col = bracket, line, col
        self.ops = self.operand = self.current = self.highest = 0
        self.sticky = False

    def operator(self) -> None:
        self.ops += 1
        if self.current > self.operand:
            self.operand = self.current
        self.current = 0

    def height(self) -> int:
        return max(self.highest, self.ops + max(self.operand, self.current))

    def comma(self) -> None:
        if self.sticky:  # a lambda's parameters: the comma does not end the expression around it
            self.operator()
            return
        self.highest = self.height()
        self.ops = self.operand = self.current = 0


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text.replace("\r\n", "\n") if "\r" in text else text
        self.findings: list[Diagnostic] = []
        self.lines: list[LogicalLine] = []
        self.blocks: list[list[int]] = [[0, 0]]  # indentation column, number of `elif` in the open if chain
        self.outer = 0  # blocks and `elif` branches around the current statement
        self.too_deep: Diagnostic | None = None

    def add(self, rule: str, message: str, line: int, col: int, width: int = 1) -> None:
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(_finding(rule, message, line, col, width))

    def deep(self, line: int, col: int, what: str) -> None:
        if self.too_deep is None:
            self.too_deep = _finding(
                "depth",
                f"{what} nests deeper than {MAX_DEPTH}; brackets, blocks and operators in a chain each count one. "
                "Name a part of it on a line of its own.",
                line,
                col,
            )

    def run(self) -> Scan:
        text = self.text
        level = _Level("", 1, 1)
        stack = [level]
        line, line_start = 1, 0
        logical: LogicalLine | None = None
        pending: list[str] = []
        line_comment: str | None = None
        was_dot = False
        count = 0
        end = len(text)
        for match in _TOKEN.finditer(text):
            kind = match.lastgroup
            at = match.start(match.lastindex)  # type: ignore[arg-type]
            if kind == "nl":
                if line_comment is not None:
                    if logical is None:
                        pending.append(line_comment)
                    elif len(stack) > 1:
                        logical.above.append(line_comment)
                    else:
                        logical.tail = line_comment
                    line_comment = None
                if logical is not None and len(stack) == 1:
                    logical.last = line
                    if level.height() + self.outer > MAX_DEPTH:
                        self.deep(logical.first, self.blocks[-1][0] + 1, "the statement")
                    logical = None
                    level = _Level("", line, 1)
                    stack = [level]
                if at >= end:
                    break
                line += 1
                line_start = at + 1
                continue
            col = at - line_start + 1
            if kind == "comment":
                line_comment = _comment(text[at : match.end()])
                continue
            count += 1
            if count > MAX_TOKENS:
                self.add(
                    "tokens", f"the program has more than {MAX_TOKENS} tokens; split it into several files", line, col
                )
                break
            if logical is None:
                logical = LogicalLine(first=line, above=pending)
                self.lines.append(logical)
                pending = []
                self.indent(line, col, match.group(kind))  # type: ignore[arg-type]
                if len(self.blocks) > MAX_DEPTH + 1:
                    break
            if kind == "name":
                word = match.group(1)
                if word in _OPERATOR_WORDS and not was_dot:
                    level.operator()
                    if word == "lambda":
                        level.sticky = True
                else:
                    if len(word) > MAX_NAME:
                        self.add(
                            "name",
                            f"a name of {len(word)} characters; at most {MAX_NAME} are read",
                            line,
                            col,
                            len(word),
                        )
                    if text[match.end() : match.end() + 1] in ("'", '"'):
                        self.add(
                            "string",
                            "a string with a prefix; plain docstrings are the only text in a kernel",
                            line,
                            col,
                        )
                        break
                    if not was_dot:
                        level.current = 1
            elif kind == "comma":
                level.comma()
            elif kind == "op":
                level.operator()
            elif kind == "dot":
                level.current += 1
            elif kind == "open":
                if len(stack) > MAX_DEPTH:
                    self.deep(line, col, "the bracket")
                    break
                level = _Level(match.group("open"), line, col)
                stack.append(level)
            elif kind == "close":
                bracket = match.group("close")
                if len(stack) == 1:
                    self.add(
                        "syntax", f"{bracket!r} closes nothing; an opening bracket is missing before it", line, col
                    )
                    break
                if level.bracket != _CLOSES[bracket]:
                    self.add(
                        "syntax",
                        f"{bracket!r} meets {level.bracket!r} opened at {level.line}:{level.col}; close that one first",
                        line,
                        col,
                    )
                    break
                inner = level.height()
                stack.pop()
                level = stack[-1]
                level.current = max(level.current, inner) + 1
                if level.current > MAX_DEPTH:
                    self.deep(line, col, "the expression")
            elif kind == "num":
                self.number(match.group("num"), line, col)
                level.current = 1
            elif kind == "str":
                body = match.group("str")
                self.string(body, line, col)
                breaks = body.count("\n")
                if breaks:
                    line += breaks
                    line_start = at + body.rfind("\n") + 1
                level.current = 1
            else:
                self.bad(match.group("bad"), line, col)
                break
            was_dot = kind == "dot"
        if not self.findings and len(stack) > 1 and not (self.too_deep and len(stack) > MAX_DEPTH):
            opened = stack[-1]
            self.add("syntax", f"{opened.bracket!r} is never closed", opened.line, opened.col)
        elif self.too_deep and not self.findings:
            self.findings.append(self.too_deep)
        spend(count)
        return Scan(tuple(self.lines), tuple(pending), tuple(self.findings))

    def indent(self, line: int, col: int, word: str) -> None:
        """Follow the block structure at the start of a logical line, as Python's tokenizer does."""
        blocks = self.blocks
        while len(blocks) > 1 and blocks[-1][0] >= col:
            blocks.pop()
        if col - 1 > blocks[-1][0]:
            blocks.append([col - 1, 0])
        if word == "elif":
            blocks[-1][1] += 1
        elif word != "else":
            blocks[-1][1] = 0
        self.outer = len(blocks) - 1 + sum([b[1] for b in blocks])
        if self.outer > MAX_DEPTH:
            self.deep(line, col, "the block")

    def number(self, word: str, line: int, col: int) -> None:
        if len(word) > MAX_NUMBER:
            self.add(
                "number", f"a number of {len(word)} characters; at most {MAX_NUMBER} are read", line, col, len(word)
            )
        elif _NUMBER.fullmatch(word) is None:
            self.add("number", f"{word!r} is not a number; write a decimal int or float", line, col, len(word))
        elif word.replace("_", "").isdigit() and int(word) > MAX_INT:
            self.add("number", f"an integer literal is at most {MAX_INT}", line, col, len(word))

    def string(self, body: str, line: int, col: int) -> None:
        if "\\" not in body:
            return
        for match in _ESCAPE.finditer(body):
            if match.group(1) is None:
                before = body[: match.start()]
                breaks = before.count("\n")
                where = match.start() - before.rfind("\n") if breaks else col + match.start()
                self.add(
                    "string",
                    "a string knows the escapes \\\\, \\\" and \\' only",
                    line + breaks,
                    where,
                    len(match.group()),
                )

    def bad(self, char: str, line: int, col: int) -> None:
        if char in "'\"":
            self.add("syntax", "this string is never closed", line, col)
        elif char == "\\":
            self.add("syntax", "a line cannot be continued with a backslash; break it inside brackets", line, col)
        elif char == ";":
            self.add("syntax", "one statement a line; start a new line instead of ';'", line, col)
        elif char.isascii():
            self.add("syntax", f"{char!r} has no meaning here", line, col)
        else:
            self.add("character", f"{char!r} (U+{ord(char):04X}) outside a comment; code is ASCII", line, col)


def _comment(raw: str) -> str:
    body = raw[1:].rstrip(" ")
    return body[1:] if body.startswith(" ") else body
