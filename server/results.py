"""What every tool and every CLI command answers: one envelope, bounded in size.

The same object is the MCP `structuredContent`, the `--json` output and the source of both text forms. Some clients
show a model nothing but `structuredContent`, so it is complete by itself: ids, artifact URIs and the next step are
fields, never prose only.

Limits: at most 20 diagnostics; a concise answer stays under 4 kB and no answer exceeds 20 kB (bytes of compact JSON).
Larger things (CUDA, SASS, ledgers, logs) are artifacts with a URI.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from cake_ir.diagnostics import Diagnostic, Fix

Status = Literal["accepted", "rejected", "passed", "failed", "ok", "running", "unavailable", "cancelled", "error"]
Detail = Literal["concise", "detailed"]

MAX_DIAGNOSTICS = 20
CONCISE_BYTES = 4_000
DETAILED_BYTES = 20_000

#: Exit codes of the command line: 0 accepted or passed, 1 rejected or failed, 2 cannot.
EXIT_CODES: Mapping[str, int] = {
    "accepted": 0,
    "passed": 0,
    "ok": 0,
    "running": 0,
    "rejected": 1,
    "failed": 1,
    "unavailable": 2,
    "cancelled": 2,
    "error": 2,
}

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


def clean(text: str, limit: int = 2_000) -> str:
    """Text that is safe to hand to a terminal or a model: no control or direction characters, no halves of one, bounded length."""
    out = _CONTROL.sub(" ", text)
    return out if len(out) <= limit else out[: max(limit - 1, 0)] + "…"


def plain(value: Any, depth: int = 12) -> Any:
    """JSON-ready copy of pydantic models, dataclasses, mappings and sequences; strings cleaned, non-finite as text."""
    if depth == 0:
        return clean(str(value), 200)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)
    if isinstance(value, str):
        return clean(value, 20_000)
    if isinstance(value, BaseModel):
        return {k: plain(getattr(value, k), depth - 1) for k in type(value).model_fields}
    if hasattr(value, "__dataclass_fields__"):
        return {k: plain(getattr(value, k), depth - 1) for k in value.__dataclass_fields__ if not k.startswith("_")}
    if isinstance(value, Mapping):
        return {clean(str(k), 200): plain(v, depth - 1) for k, v in value.items()}
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    if isinstance(value, set | frozenset):
        return [plain(v, depth - 1) for v in sorted(value, key=str)]
    if isinstance(value, Iterable):
        return [plain(v, depth - 1) for v in value]
    return clean(str(value), 500)


def rounded(value: Any) -> Any:
    """Numbers to four digits: an answer is for reading, an artifact has them all."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in value.items()}
    return [rounded(v) for v in value] if isinstance(value, list) else value


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Place(_Model):
    """A second place in the source."""

    line: int
    col: int
    message: str


class TextEdit(_Model):
    """Replace `old`, which occurs exactly once in the text, by `new`."""

    old: str
    new: str


class FixOut(_Model):
    """Edits to send back with propose_ir; `verified` means the edited copy passed the verifier, its results are unchecked."""

    title: str
    verified: bool
    edits: list[TextEdit]


class DiagnosticOut(_Model):
    """One finding. `line` and `col` are 1-based positions in the submitted text."""

    rule: str
    severity: Literal["error", "warning", "advice"]
    line: int
    col: int
    message: str
    source: str = ""
    contract: str = ""
    subject: dict[str, Any] = Field(default_factory=dict)
    related: list[Place] = Field(default_factory=list)
    evidence: list[Place] = Field(default_factory=list)
    fixes: list[FixOut] = Field(default_factory=list)

    def line_form(self) -> str:
        return f"{self.line}:{self.col}: {self.severity}[{self.rule}]: {self.message}"


class Artifact(_Model):
    """Something too large to inline; read it with read_artifact or as a resource."""

    uri: str
    kind: str
    bytes: int
    lines: int


class Result(_Model):
    """The envelope of all tools and commands."""

    summary: str
    status: Status
    code: str = ""
    ids: dict[str, str] = Field(default_factory=dict)
    diagnostics: list[DiagnosticOut] = Field(default_factory=list)
    total: int = 0
    omitted: dict[str, int] = Field(default_factory=dict)
    undecided: list[str] = Field(default_factory=list)
    data: dict[str, Any] = Field(default_factory=dict)
    artifacts: list[Artifact] = Field(default_factory=list)
    next: str = ""

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.status]

    def compact(self) -> dict[str, Any]:
        """The JSON object with empty members left out; key order is the same for every tool."""
        out = self.model_dump(mode="json")
        out["diagnostics"] = [{k: v for k, v in d.items() if v not in ("", [], {})} for d in out["diagnostics"]]
        keep = ("summary", "status")
        return {k: v for k, v in out.items() if k in keep or v not in ("", [], {}, 0)}

    def text(self) -> str:
        """The compact text copy: one line per diagnostic."""
        lines = [f"{self.status}: {self.summary}"]
        if self.code:
            lines.append(f"code: {self.code}")
        lines += [d.line_form() for d in self.diagnostics]
        lines += [f"undecided: {item}" for item in self.undecided]
        if self.omitted:
            lines.append("not shown: " + ", ".join(f"{n} x {rule}" for rule, n in self.omitted.items()))
        if self.ids:
            lines.append("ids: " + " ".join(f"{k}={v}" for k, v in self.ids.items()))
        lines += [f"artifact: {a.uri} ({a.kind}, {a.bytes} B, {a.lines} lines)" for a in self.artifacts]
        if self.next:
            lines.append(f"next: {self.next}")
        return "\n".join(lines)


def size_of(payload: Any) -> int:
    """Bytes of the compact JSON form."""
    return len(json.dumps(payload, separators=(",", ":"), ensure_ascii=False).encode())


def occurrences(text: str, part: str) -> list[int]:
    """Offsets of `part`, overlapping ones too (`str.count` misses those); empty for an empty part."""
    out: list[int] = []
    at = text.find(part) if part else -1
    while at >= 0:
        out.append(at)
        at = text.find(part, at + 1)
    return out


def text_edits(text: str, fix: Fix) -> list[TextEdit] | None:
    """Express span edits as exact old/new edits that match once each, in the order in which they are to be applied.

    Edits are applied from the end of the text backwards so that earlier spans stay valid. Returns None when a span lies
    outside the text (an edit that cannot be applied must not be offered).
    """
    out: list[TextEdit] = []
    for edit in sorted(fix.edits, key=lambda e: (e.span.line, e.span.col), reverse=True):
        starts = _line_starts(text)
        begin = _offset(starts, text, edit.span.line, edit.span.col)
        end = _offset(starts, text, edit.span.end_line, edit.span.end_col) if edit.span.end_line else begin
        if begin is None or end is None or end < begin:
            return None
        new_text = text[:begin] + edit.new + text[end:]
        first, last = text.rfind("\n", 0, begin) + 1, text.find("\n", end)
        last = len(text) if last < 0 else last
        # Grow by whole lines until the old string is unique: a line such as `wait(full[n])` often repeats.
        while len(occurrences(text, text[first:last])) != 1 and (first > 0 or last < len(text)):
            if first > 0:
                first = text.rfind("\n", 0, first - 1) + 1
            if last < len(text):
                nxt = text.find("\n", last + 1)
                last = len(text) if nxt < 0 else nxt
        tail = len(text) - last
        out.append(TextEdit(old=text[first:last], new=new_text[first : len(new_text) - tail]))
        text = new_text
    return out


def _line_starts(text: str) -> list[int]:
    return [0, *(m.end() for m in re.finditer("\n", text))]


def _offset(starts: Sequence[int], text: str, line: int, col: int) -> int | None:
    if not 1 <= line <= len(starts) or col < 1:
        return None
    end = starts[line] - 1 if line < len(starts) else len(text)
    at = starts[line - 1] + col - 1
    return at if at <= end else None


def diagnostic_out(diagnostic: Diagnostic, text: str, detail: Detail) -> DiagnosticOut:
    """One diagnostic in its wire form, with the source line it points at."""
    lines = text.split("\n")
    at = diagnostic.span.line
    long = detail == "detailed"
    fixes = []
    for fix in diagnostic.fixes[: 3 if long else 1]:
        edits = text_edits(text, fix)
        if edits:
            fixes.append(FixOut(title=clean(fix.title, 200), verified=fix.verified, edits=edits))
    subject = {k: v for k, v in plain(diagnostic.subject).items() if v is not None}
    return DiagnosticOut(
        rule=diagnostic.rule,
        severity=diagnostic.severity,
        line=diagnostic.span.line,
        col=diagnostic.span.col,
        message=clean(diagnostic.message, 2_000 if long else 400),
        source=clean(lines[at - 1].strip(), 160) if 0 < at <= len(lines) else "",
        contract=clean(diagnostic.contract, 600 if long else 240),
        subject=subject,
        related=[
            Place(line=r.span.line, col=r.span.col, message=clean(r.message, 240))
            for r in diagnostic.related[: 8 if long else 2]
        ],
        evidence=[
            Place(line=s.span.line, col=s.span.col, message=clean(s.text, 240))
            for s in diagnostic.evidence[: 16 if long else 0]
        ],
        fixes=fixes,
    )


_ORDER = {"error": 0, "warning": 1, "advice": 2}


def add_diagnostics(result: Result, diagnostics: Sequence[Diagnostic], text: str, detail: Detail) -> Result:
    """Sort, remove duplicates, cap at 20 and count what was left out per rule."""
    seen: set[tuple[Any, ...]] = set()
    unique: list[Diagnostic] = []
    for d in sorted(diagnostics, key=lambda d: (_ORDER[d.severity], d.span.line, d.span.col, d.rule, d.message)):
        key = (d.rule, d.span.line, d.span.col, d.message)
        if key not in seen:
            seen.add(key)
            unique.append(d)
    cap = MAX_DIAGNOSTICS if detail == "detailed" else 8
    result.diagnostics = [diagnostic_out(d, text, detail) for d in unique[:cap]]
    result.total = len(unique)
    result.omitted = dict(Counter(d.rule for d in unique[cap:]))
    return result


def fit(result: Result, detail: Detail = "concise") -> Result:
    """Trim a result to its byte budget, least useful first; what is dropped is counted or pointed to."""
    budget = CONCISE_BYTES if detail == "concise" else DETAILED_BYTES
    steps = (
        lambda d: d.evidence.clear(),
        lambda d: d.related.clear(),
        lambda d: setattr(d, "contract", ""),
        lambda d: setattr(d, "message", clean(d.message, 200)),
    )
    for step in steps:
        # The first finding keeps everything the longest: it is the one to repair next.
        for d in reversed(result.diagnostics[1:]):
            if size_of(result.compact()) <= budget:
                return result
            step(d)
    for d in reversed(result.diagnostics[1:]):
        if size_of(result.compact()) <= budget:
            return result
        d.fixes.clear()
    while len(result.diagnostics) > 1 and size_of(result.compact()) > budget:
        gone = result.diagnostics.pop()
        result.omitted[gone.rule] = result.omitted.get(gone.rule, 0) + 1
    _fit_data(result, budget)
    if size_of(result.compact()) > budget and result.diagnostics:
        first = result.diagnostics[0]
        first.evidence.clear()
        first.fixes.clear()
        first.related.clear()
    while size_of(result.compact()) > budget and len(result.artifacts) > 1:
        result.artifacts.pop()
    # Sentences last: each is bounded, but not in bytes, and not all of them together.
    for limit in (300, 150):
        if size_of(result.compact()) <= budget:
            break
        result.undecided = [clean(u, limit // 3) for u in result.undecided[: MAX_DIAGNOSTICS // 2]]
        result.summary, result.next = clean(result.summary, limit), clean(result.next, limit)
    return result


#: What a reader of a result misses least: facts of a build that stand in its artifacts too.
_LEAST_USEFUL = (
    "instructions", "notes", "cubin_sha256", "cubin_bytes", "nvrtc", "compile_s", "cached", "conditions", "resources",
)  # fmt: skip


def _fit_data(result: Result, budget: int) -> None:
    """Shorten, then drop, the largest members of `data` until the result fits; what went is named in `left_out`.

    Facts of the build go first, so that the cases of a failed check are the last to be shortened.
    """
    left_out: list[str] = []
    for name in _LEAST_USEFUL:
        if size_of(result.compact()) <= budget:
            return
        if result.data.pop(name, None):
            left_out.append(name)
            result.data["left_out"] = left_out[:12]
    while size_of(result.compact()) > budget:
        where, path = result.data, ""
        if not any(k != "left_out" for k in where):
            result.data = {}
            return
        while True:
            name = max((k for k in where if k != "left_out"), key=lambda k: size_of(where[k]))
            path = f"{path}.{name}" if path else name
            value = where[name]
            # Look inside an object that holds most of the bytes: half of its rows say more than none of it.
            if not (isinstance(value, dict) and value and size_of(value) > budget // 4):
                break
            where = value
        if isinstance(value, list) and len(value) > 3:
            where[name] = value[: len(value) // 2]
        elif isinstance(value, str) and len(value) > 200:
            where[name] = clean(value, len(value) // 2)
        else:
            where.pop(name)
        if path not in left_out:
            left_out.append(path)
            result.data["left_out"] = left_out[:12]
