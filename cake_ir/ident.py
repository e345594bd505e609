"""Content ids: what a program is, whatever it is called and however it is commented.

An id is SHA-256 over canonical text without comments and docstrings, cut to 128 bits. Prose is left out because
evidence belongs to the program: rewording a docstring must not orphan its measurements. Ids do not depend on the
process, on hash seeds or on the layout of the text that was read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from cake_ir import syntax as cst
from cake_ir.text.printer import print_expr, print_file

Value = bool | int | float | str


def content_id(file: cst.File) -> str:
    """`ir_` and 32 hex digits."""
    return "ir_" + _digest(print_file(file, prose=False))


def variant_id(file: cst.File, bindings: Mapping[str, Value], target: str | None, kernel: str | None) -> str:
    """`v_` and 32 hex digits: the program with parameters, target and entry chosen.

    `bindings` maps tunables (`NAME`, or `kernel.NAME` below a program) to bool, int, float or a dtype name. A tunable
    left out counts as bound to its default, so writing the default changes nothing; likewise for the only target and
    entry.
    Raises TypeError for a binding of another type.
    """
    for name, value in bindings.items():
        if not isinstance(value, bool | int | float | str):
            raise TypeError(f"the binding {name!r} is a {type(value).__name__}; it must be bool, int, float or str")
    entry = _entry(file, kernel)
    if entry is not None:
        kernel = entry.name
    if target is None and isinstance(entry, cst.Kernel) and len(entry.targets) == 1:
        target = entry.targets[0]
    values = {name: _spell(value) for name, value in bindings.items()}
    if isinstance(entry, cst.Kernel):
        defaults = {tunable.name: tunable for tunable in entry.tunables}
    else:
        defaults = {tunable.name: tunable for tunable in (entry.tunables if entry is not None else ())}
        for each in file.kernels:
            defaults.update({f"{each.name}.{tunable.name}": tunable for tunable in each.tunables})
    for name, tunable in defaults.items():
        values.setdefault(name, print_expr(tunable.default))
    parts = [content_id(file), kernel, target, sorted(values.items())]
    return "v_" + _digest(json.dumps(parts, ensure_ascii=True, separators=(",", ":")))


def _entry(file: cst.File, kernel: str | None) -> cst.Kernel | cst.Program | None:
    """The function that is bound: the named one, else the program, else the only kernel."""
    entries: list[cst.Kernel | cst.Program] = [*file.kernels, *([file.program] if file.program else [])]
    if kernel is not None:
        return next((item for item in entries if item.name == kernel), None)
    if file.program is not None:
        return file.program
    return file.kernels[0] if len(file.kernels) == 1 else None


def _spell(value: Value) -> str:
    """As the literal is written in a text, so that a given value and a default compare equal."""
    return value if isinstance(value, str) else repr(value)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:32]
