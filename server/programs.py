"""Programs as the server sees them: a text or an id, edits, bindings; parsed, bound and cached.

A reference names a program by exactly one of: whole text, `ir_` id (content; the text last submitted), `src_` id (that
exact text, parsable or not), `v_` id (program with bindings, target and kernel).
"""

from __future__ import annotations

import difflib
import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from cake_ir.diagnostics import CakeError, Diagnostic
from server.errors import BadArgument, UnknownId
from server.limits import computation_limit
from server.results import TextEdit, clean, occurrences
from server.store import Store, digest, is_id

if TYPE_CHECKING:
    from cake_ir.bound import BoundKernel
    from cake_ir.syntax import File, Kernel

Value = bool | int | float | str

MAX_TEXT = 256 * 1024
MAX_EDITS = 64
PARSE_S = 10.0
BIND_S = 10.0


@dataclass(frozen=True)
class Ref:
    """What a caller named: one of id or text, and how to bind it."""

    id: str = ""
    text: str | None = None
    bindings: Mapping[str, Value] = field(default_factory=dict)
    target: str | None = None
    kernel: str | None = None


@dataclass(frozen=True)
class Unit:
    """One kernel of a program, bound for one target; `bound` is None when binding found errors."""

    kernel: str
    target: str
    bindings: dict[str, Value]
    variant_id: str
    bound: BoundKernel | None
    diagnostics: tuple[Diagnostic, ...]


@dataclass(frozen=True)
class Program:
    """A loaded program. `file` is None when the text does not parse; then `ir_id` is empty."""

    text: str
    source_id: str
    ir_id: str
    file: File | None
    diagnostics: tuple[Diagnostic, ...]
    ref: Ref

    @property
    def ids(self) -> dict[str, str]:
        out = {"ir_id": self.ir_id} if self.ir_id else {}
        return out | ({"source_id": self.source_id} if self.source_id else {})

    @property
    def name(self) -> str:
        if self.file is None:
            return "program"
        if self.file.program is not None:
            return self.file.program.name
        names = [k.name for k in self.file.kernels]
        return " and ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "") or "program"


def apply_edits(text: str, edits: Sequence[TextEdit]) -> str:
    """Apply exact edits in order. Raises BadArgument unless every `old` occurs exactly once when its turn comes."""
    if len(edits) > MAX_EDITS:
        raise BadArgument(f"{len(edits)} edits; at most {MAX_EDITS} per call", "send the whole text instead")
    for number, edit in enumerate(edits, 1):
        count = len(occurrences(text, edit.old))
        if count != 1:
            raise BadArgument(
                f"edit {number}: `old` occurs {count} times in the base text, expected exactly once"
                + _closest(text, edit.old, count),
                "copy `old` exactly from the base text, with enough neighbouring lines to be unique",
                code="args/edit-not-unique" if count else "args/edit-not-found",
            )
        text = text.replace(edit.old, edit.new, 1)
    return text


def _closest(text: str, old: str, count: int) -> str:
    lines = text.split("\n")
    if count > 1:
        hits = [str(text[:i].count("\n") + 1) for i in occurrences(text, old)][:6]
        return f" (lines {', '.join(hits)})"
    wanted = next((part.strip() for part in old.split("\n") if part.strip()), "")
    best = (
        difflib.get_close_matches(wanted, [line.strip() for line in lines[:4_000]], n=1, cutoff=0.6) if wanted else []
    )
    if not best:
        return ""
    at = next(i for i, line in enumerate(lines, 1) if line.strip() == best[0])
    return f"; the closest line is {at}: {clean(best[0], 120)!r}"


class Programs:
    """Loads and binds programs; keeps what it parsed and bound for the next call."""

    def __init__(self, store: Store, cache_size: int = 32) -> None:
        self._store = store
        self._cache_size = cache_size
        self._files: OrderedDict[str, Program] = OrderedDict()
        self._units: OrderedDict[str, Unit] = OrderedDict()

    def load(self, ref: Ref) -> Program:
        """Resolve a reference and parse it. A text that does not parse is a Program without a file, not an error.

        Raises BadArgument for contradictory references and UnknownId for ids that are not here.
        """
        if bool(ref.id) == (ref.text is not None):
            raise BadArgument("give exactly one of an id and a text", "pass ir_id of an earlier propose_ir, or text")
        if ref.text is not None:
            return self._parse(ref.text, ref)
        if not is_id(ref.id):
            raise BadArgument(
                f"{clean(ref.id, 80)!r} is not an id",
                "ids look like ir_ followed by 32 hex digits, as propose_ir returns them",
            )
        if is_id(ref.id, "v"):
            ref = self._from_variant(ref)
        found = self._store.source_of(ref.id)
        if found is None:
            raise UnknownId("program", ref.id)
        return self._parse(found[1], ref)

    def _from_variant(self, ref: Ref) -> Ref:
        row = self._store.variant(ref.id)
        if row is None:
            raise UnknownId("variant", ref.id)
        return replace(
            ref,
            id=row["ir_id"],
            bindings={**row["bindings"], **ref.bindings},
            target=ref.target or row["target"],
            kernel=ref.kernel or row["kernel"],
        )

    def _parse(self, text: str, ref: Ref) -> Program:
        from cake_ir import parse

        key = digest("src", text)
        cached = self._files.get(key)
        if cached is None:
            cached = self._parse_new(text, parse)
            self._files[key] = cached
            while len(self._files) > self._cache_size:
                self._files.popitem(last=False)
        if cached.ir_id:
            self._store.put_program(cached.ir_id, cached.source_id, cached.name)
        return replace(cached, ref=ref)

    def _parse_new(self, text: str, parse: Any) -> Program:
        from cake_ir import content_id

        if len(text) > MAX_TEXT or len(text.encode(errors="replace")) > MAX_TEXT:
            return Program(text[:200], "", "", None, tuple(parse(text).diagnostics), Ref())
        try:
            text.encode()
        except UnicodeEncodeError:
            raise BadArgument("the text holds characters that are not valid Unicode", "send plain UTF-8 text") from None
        source_id = self._store.put_source(text)
        with computation_limit("parsing", PARSE_S):
            parsed = parse(text)
        ir_id = content_id(parsed.file) if parsed.file is not None else ""
        return Program(text, source_id, ir_id, parsed.file, tuple(parsed.diagnostics), Ref())

    def units(self, program: Program) -> list[Unit]:
        """Bind the named kernel, or every kernel of the file, in text order. Empty when the text did not parse."""
        return [self._bind(program, *chosen) for chosen in self.chosen(program)]

    def chosen(self, program: Program) -> list[tuple[str, str, dict[str, Value]]]:
        """Kernel, target and its own bindings of what `units` binds. Raises BadArgument for a name that the file does not have."""
        if program.file is None:
            return []
        kernels = self._kernels(program.file, program.ref)
        known = {t.name for k in kernels for t in k.tunables}
        unknown = sorted(set(program.ref.bindings) - known)
        if unknown:
            raise BadArgument(
                f"no tunable named {', '.join(map(repr, unknown))}; tunables are {', '.join(sorted(known)) or 'none'}",
                "bind only the keyword-only parameters of the kernel",
                code="args/unknown-tunable",
            )
        out = []
        for kernel in kernels:
            own = {t.name for t in kernel.tunables}
            target = program.ref.target or (kernel.targets[0] if kernel.targets else "")
            out.append((kernel.name, target, {k: v for k, v in program.ref.bindings.items() if k in own}))
        return out

    def _kernels(self, file: File, ref: Ref) -> list[Kernel]:
        names = [k.name for k in file.kernels]
        if ref.kernel is not None and ref.kernel not in names:
            raise BadArgument(
                f"no kernel named {clean(ref.kernel, 64)!r}; the file has {', '.join(names)}",
                code="args/unknown-kernel",
            )
        kernels = [k for k in file.kernels if ref.kernel is None or k.name == ref.kernel]
        if ref.target is not None:
            _check_target(ref.target, kernels)
            kernels = [k for k in kernels if ref.target in k.targets]
        return kernels

    def _bind(self, program: Program, kernel: str, target: str, bindings: dict[str, Value]) -> Unit:
        from cake_ir import bind, variant_id

        key = json.dumps([program.source_id or program.text, kernel, target, bindings], sort_keys=True)
        unit = self._units.get(key)
        if unit is None:
            assert program.file is not None
            try:
                with computation_limit("typing", BIND_S):
                    done = bind(program.file, bindings, target, kernel)
                bound, diagnostics = done.bound, tuple(done.diagnostics)
            except CakeError as exc:
                bound, diagnostics = None, (exc.diagnostic,)
            unit = Unit(
                kernel, target, bindings, variant_id(program.file, bindings, target, kernel), bound, diagnostics
            )
            self._units[key] = unit
            while len(self._units) > self._cache_size:
                self._units.popitem(last=False)
        self._store.put_variant(unit.variant_id, program.ir_id, unit.bindings, unit.target, unit.kernel)
        return unit


def _check_target(target: str, kernels: Sequence[Kernel]) -> None:
    from cake_ir import targets

    if target not in targets.names():
        raise BadArgument(
            f"no target named {clean(target, 40)!r}; known: {', '.join(targets.names())}", code="args/unknown-target"
        )
    named = sorted({t for k in kernels for t in k.targets})
    if target not in named:
        raise BadArgument(
            f"this program is written for {', '.join(named) or 'no target'}, not for {target}",
            "name one of its targets, or add the target to @kernel(target=...) if the program is legal there",
            code="args/target-not-named",
        )


def text_of(obj: Mapping[str, Any]) -> str:
    """Canonical text of the JSON form. Raises BadArgument with the first fault of a malformed tree."""
    from cake_ir import from_json, print_file

    parsed = from_json(dict(obj))
    if parsed.file is None:
        first = parsed.diagnostics[0].message if parsed.diagnostics else "malformed"
        raise BadArgument(
            f"the JSON form is not a program: {first}",
            "see `cake show FILE --json` for the form",
            code="args/json-form",
        )
    return print_file(parsed.file)
