"""What compute-sanitizer prints, as located findings. Pure text work: nothing here starts a process or touches a GPU.

The tools report one block per faulty access or race:

    ========= Invalid __global__ write of size 16 bytes
    =========     at cake::st_global_v4_b32(...)+0x1490 in generated.cu:69
    =========     by thread (0,0,0) in block (8,0,0)
    =========     Access to 0x7fdb6b822000 is out of bounds
    =========         Device Frame: rmsnorm+0x1490 in rmsnorm.cake:23

Kernels are compiled with line information and `#line`, so a device frame names the `.cake` line; where a tool prints no
frame (racecheck), the instruction's offset is looked up in the line table of the cubin (`Lines`). Blocks with the same
tool, kind and lines are one finding with a count. The format is that of compute-sanitizer 2025.3 (CUDA 13.0).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Tool = Literal["memcheck", "racecheck", "synccheck", "initcheck"]
TOOLS: tuple[Tool, ...] = ("memcheck", "racecheck", "synccheck", "initcheck")
Lines = Sequence[tuple[int, int]]
"""Line table of one kernel: (byte offset at which a line begins, `.cake` line or 0), ascending."""

PREFIX = "========="
MAX_FINDINGS = 50
LIMITS: dict[Tool, str] = {
    "memcheck": "an access far outside its tensor that lands in another one is not seen",
    "racecheck": "shared memory only; writes of the asynchronous proxy (TMA, bulk copies) and operands of wgmma and tcgen05 "
    "are not followed",
    "synccheck": "only barriers of the launch that was watched; nothing about data",
    "initcheck": "global memory only; shared memory and registers are not followed",
}
"""What each tool does not see, so that silence is not taken for proof."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Site(_Model):
    """One instruction of a finding. `line` is the `.cake` line (0 when unknown), `offset` its byte offset in the kernel,
    `access` what it does ("write access", "read access"; empty when the headline says it)."""

    line: int = 0
    offset: int = -1
    access: str = ""
    function: str = ""


class Finding(_Model):
    """Reports of one tool that say the same about the same lines.

    `kind` is a stable word such as `invalid-global-write`; `thread` and `block` are those of the first report; `facts`
    holds what it says about addresses. `count` counts reports, for racecheck the hazards in them.
    """

    tool: Tool
    kind: str
    message: str
    severity: Literal["error", "warning"] = "error"
    count: int = 1
    sites: tuple[Site, ...] = ()
    thread: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    facts: tuple[str, ...] = ()

    @property
    def line(self) -> int:
        """The first known line; 0 when no site has one."""
        return next((s.line for s in self.sites if s.line), 0)


class Parsed(_Model):
    """Findings and the tool's own totals; `errors` is None when it printed no summary (it did not finish)."""

    findings: tuple[Finding, ...] = ()
    errors: int | None = None
    dropped: int = Field(default=0, description="findings beyond the limit, and reports that the tool did not print")


_SITE = re.compile(
    r"^(?:(?P<access>.*?)\s+)?at (?P<function>.+?)\+(?P<offset>0x[0-9a-f]+)(?: in (?P<file>[^ ]+):(?P<line>\d+))?"
    r"(?: \[(?P<hazards>\d+) hazards?\])?$"
)
_FRAME = re.compile(r"^Device Frame: .*?(?:\+(?P<offset>0x[0-9a-f]+))? in (?P<file>[^ ]+\.cake):(?P<line>\d+)$")
_BY = re.compile(r"by thread \((\d+),(\d+),(\d+)\) in block \((\d+),(\d+),(\d+)\)")
_SUMMARY = re.compile(r"(?:ERROR SUMMARY: (\d+) errors?$|RACECHECK SUMMARY: \d+ hazards? displayed \((\d+) errors?)")
_NOT_PRINTED = re.compile(r"(\d+) errors? (?:was|were) not printed")
_NOISE = re.compile(
    r"COMPUTE-SANITIZER|SUMMARY:|Target application returned an error|Saved host backtrace|Program hit|Error: process|"
    r"Internal Sanitizer|No attachable process|LEAK "
)
_RACE = re.compile(r"^(?P<severity>Error|Warning|Info): (?:Race reported between|Potential \w+ hazard)", re.I)


def parse(text: str, tool: Tool, lines: Mapping[str, Lines] | None = None) -> Parsed:
    """Findings in a tool's output; lines that do not start with the tool's prefix are skipped.

    lines: line table by kernel symbol, for reports without a device frame. With several kernels a report without a frame
    has no line, since it does not name its kernel.
    """
    table = next(iter(lines.values())) if lines and len(lines) == 1 else ()
    found: dict[tuple[object, ...], Finding] = {}
    errors: int | None = None
    dropped = 0
    for block in _blocks(text):
        head = block[0]
        summary = _SUMMARY.search(head)
        if summary:
            errors = (errors or 0) + _int(summary.group(1) or summary.group(2))
            continue
        hidden = _NOT_PRINTED.search(head)
        if hidden:
            dropped += _int(hidden.group(1))
            continue
        if _NOISE.search(head):
            continue
        one = _finding(block, tool, table)
        key = (one.kind, one.severity, tuple((s.line, s.line or s.offset, s.access) for s in one.sites))
        known = found.get(key)
        if known is None and len(found) >= MAX_FINDINGS:
            dropped += 1
            continue
        found[key] = one if known is None else known.model_copy(update={"count": known.count + one.count})
    return Parsed(findings=tuple(found.values()), errors=errors, dropped=dropped)


def table(instructions: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The line table of a kernel from (offset, line) of its instructions: only where the line changes."""
    out: list[tuple[int, int]] = []
    for offset, line in sorted(instructions):
        if not out or out[-1][1] != line:
            out.append((offset, line))
    return out


def line_at(lines: Lines, offset: int) -> int:
    """The line of the instruction at `offset`; 0 when the table does not say."""
    at = bisect_right(lines, (offset, 1 << 30)) - 1
    return lines[at][1] if at >= 0 else 0


def _blocks(text: str) -> Iterable[list[str]]:
    """Reports: a headline and the indented lines below it, up to an empty one."""
    block: list[str] = []
    for raw in text.splitlines():
        if not raw.startswith(PREFIX):
            continue
        body = raw[len(PREFIX) :].rstrip()
        inner = body.startswith("     ")
        if inner and block:
            block.append(body.strip())
            continue
        if block:
            yield block
        block = [body.strip()] if body.strip() and not inner else []
    if block:
        yield block


def _int(digits: str | None, base: int = 10) -> int:
    """A number of the tool's text; 0 where there is none, or one longer than any that the tool counts."""
    return int(digits, base) if digits and len(digits) <= 20 else 0


def _finding(block: Sequence[str], tool: Tool, table: Lines) -> Finding:
    head = block[0]
    race = _RACE.match(head)
    sites: list[Site] = []
    frames: list[int] = []
    facts: list[str] = []
    thread: tuple[int, int, int] | None = None
    block_at: tuple[int, int, int] | None = None
    count = 0
    for text in ([head[race.end() :].strip()] if race else []) + list(block[1:]):
        if text.startswith(("Host Frame", "Saved host backtrace")):
            continue
        frame = _FRAME.match(text)
        site = _SITE.match(text)
        who = _BY.search(text)
        if frame:
            frames.append(_int(frame["line"]))
        elif text.startswith("Device Frame"):
            continue
        elif site:
            sites.append(_site(site, table))
            count += _int(site["hazards"])
        elif who and thread is None:
            x, y, z, bx, by, bz = map(_int, who.groups())
            thread, block_at = (x, y, z), (bx, by, bz)
        elif not who and len(facts) < 4:
            facts.append(text[:200])
    if sites and frames and not race:
        # the innermost frame that is a line of the program, whatever helper the access was inlined from
        sites[0] = sites[0].model_copy(update={"line": frames[0]})
    elif frames and not sites:
        sites.append(Site(line=frames[0]))
    warned = bool(race) and race["severity"].lower() != "error"  # type: ignore[index]
    return Finding(
        tool=tool, kind=_kind(head, facts), message=head[:200], severity="warning" if warned else "error",
        count=max(count, 1), sites=tuple(sites), facts=tuple(facts),
        thread=thread, block=block_at,
    )  # fmt: skip


def _site(found: re.Match[str], table: Lines) -> Site:
    offset = _int(found["offset"], 16)
    own = _int(found["line"]) if (found["file"] or "").endswith(".cake") else 0
    access = re.sub(r"^and ", "", found["access"] or "").lower()
    function = found["function"].split("(", 1)[0].removeprefix("cake::")
    return Site(line=own or line_at(table, offset), offset=offset, access=access[:40], function=function[:80])


def _kind(head: str, facts: Sequence[str]) -> str:
    """A stable word for a headline: no sizes, addresses or function names."""
    invalid = re.match(r"Invalid __(\w+)__ (\w+)", head)
    if invalid:
        what = "misaligned" if any("misaligned" in f for f in facts) else "invalid"
        return f"{what}-{invalid[1]}-{invalid[2]}"
    uninitialised = re.match(r"Uninitialized __(\w+)__ memory (\w+)", head)
    if uninitialised:
        return f"uninitialised-{uninitialised[1]}-{uninitialised[2]}"
    if "Race reported" in head or "hazard" in head:
        return "shared-race"
    barrier = re.match(r"Barrier error detected\. (.*)", head)
    words = re.findall(r"[a-z]+", re.sub(r"0x[0-9a-f]+", " ", (barrier[1] if barrier else head).lower()))
    return "-".join((["barrier"] if barrier else []) + words[:5])[:60] or "report"
