"""The JSON form: the syntax tree as plain data, with its schema.

`from_json` validates, prints the canonical text and parses that, so a program that arrives as JSON has spans like any
other. JSON has one number type in some writers: `1` is an integer literal and `1.0` a float, and a writer that drops
the `.0` changes the program.
"""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from cake_ir.diagnostics import NOWHERE, Diagnostic, error
from cake_ir.syntax import File
from cake_ir.text.limits import MAX_DEPTH, MAX_TOKENS
from cake_ir.text.parser import ParseResult, parse
from cake_ir.text.printer import print_file

SCHEMA_ID = "https://json-schema.org/draft/2020-12/schema"
MAX_JSON_DEPTH = 3 * MAX_DEPTH  # a node is an object and mostly an array: two levels
MAX_JSON_VALUES = 8 * MAX_TOKENS
MAX_ERRORS = 20


def to_json(file: File) -> dict[str, Any]:
    """The tree as plain JSON data, without spans."""
    return file.model_dump(mode="json")


def from_json(obj: object, name: str = "<json>") -> ParseResult:
    """The file that `obj` describes. Errors name the faulty value by its JSON pointer (RFC 6901). Never raises.

    Spans, also those of errors found after validation, refer to the canonical text in `ParseResult.text`.
    """
    faults = _check_shape(obj)
    if faults:
        return ParseResult(None, tuple(faults), "", name)
    try:
        file = File.model_validate(obj)
    except ValidationError as fault:
        return ParseResult(None, tuple(_translate(fault, obj)), "", name)
    except RecursionError:
        return ParseResult(None, (_fault("depth", (), "nests too deeply to be read"),), "", name)
    return parse(print_file(file), name)


def json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of what `from_json` reads."""
    schema = File.model_json_schema()
    schema["$defs"].pop("Span", None)
    for model in [schema, *schema["$defs"].values()]:
        properties = model.get("properties", {})
        properties.pop("span", None)
        if "node" in properties:
            model["required"] = ["node", *(field for field in model.get("required", []) if field != "node")]
    return {"$schema": SCHEMA_ID, **schema, "title": "Cake IR program"}


def pointer(path: tuple[str | int, ...]) -> str:
    """RFC 6901; the whole document is the empty string."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


def _fault(rule: str, path: tuple[str | int, ...], message: str) -> Diagnostic:
    where = pointer(path)
    shown = where if len(where) <= 200 else where[:200] + "..."
    return error(f"language/{rule}", "language", f"JSON value at {shown!r}: {message}", NOWHERE)


def _check_shape(obj: object) -> list[Diagnostic]:
    """What must hold before a recursive validator may look: depth, amount, and a `node` in every object."""
    if not isinstance(obj, dict):
        return [_fault("json", (), f"the program is an object with node 'File', not {_kind(obj)}")]
    if obj.get("node") != "File":
        return [_fault("json", ("node",), "the program is an object with node 'File'")]
    faults: list[Diagnostic] = []
    seen = 0
    stack: list[tuple[object, tuple[str | int, ...]]] = [(obj, ())]
    while stack and len(faults) < MAX_ERRORS:
        value, path = stack.pop()
        seen += 1
        if seen > MAX_JSON_VALUES:
            return [
                _fault("size", (), f"the program has more than {MAX_JSON_VALUES} values; split it into several files")
            ]
        if len(path) > MAX_JSON_DEPTH:
            return [
                _fault("depth", path, f"nests deeper than {MAX_JSON_DEPTH} levels; name a part on a line of its own")
            ]
        if isinstance(value, dict):
            if "node" not in value:
                faults.append(_fault("json", path, "the object has no 'node'; every node carries its class name"))
            if "span" in value:
                faults.append(
                    _fault("json", (*path, "span"), "spans are derived from the canonical text; leave them out")
                )
            stack += [(inner, (*path, key)) for key, inner in reversed(value.items()) if isinstance(key, str)]
            if not all(isinstance(key, str) for key in value):
                faults.append(_fault("json", path, "object keys are strings"))
        elif isinstance(value, list | tuple):
            stack += [(inner, (*path, index)) for index, inner in reversed(list(enumerate(value)))]
    return faults


def _translate(fault: ValidationError, obj: object) -> list[Diagnostic]:
    items = [(_path(item["loc"], obj), item) for item in fault.errors(include_url=False, include_input=False)]
    found: list[Diagnostic] = []
    for path, item in items:
        if item["type"] == "too_short" and any(other[: len(path)] == path and other != path for other, _ in items):
            continue  # an array seems too short only because its faulty members were dropped
        found.append(_fault("json", path, _wording(item["msg"])))
        if len(found) == MAX_ERRORS:
            break
    return found


def _wording(message: str) -> str:
    """pydantic's message in JSON's terms."""
    return message.removeprefix("Value error, ").replace("valid tuple", "valid array").replace("Tuple ", "the array ")


def _path(loc: tuple[str | int, ...], obj: object) -> tuple[str | int, ...]:
    """pydantic's location without the class names it adds for discriminated unions."""
    path: list[str | int] = []
    here: Any = obj
    for position, part in enumerate(loc):
        known, inner = _member(here, part)
        missing = isinstance(here, dict) and part != here.get("node") and position == len(loc) - 1
        if known or missing:
            here = inner
            path.append(part)
    return tuple(path)


def _member(value: Any, key: str | int) -> tuple[bool, Any]:
    if isinstance(value, dict) and key in value:
        return True, value[key]
    if isinstance(value, list | tuple) and isinstance(key, int) and key < len(value):
        return True, value[key]
    return False, None


def _kind(obj: object) -> str:
    if obj is None:
        return "null"
    names = {list: "an array", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(obj), f"a {type(obj).__name__}")
