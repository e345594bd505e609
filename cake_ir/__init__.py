"""Cake IR: a typed language for GPU kernels, its text and JSON forms, and the binding of its parameters.

The names below are loaded on first use, so that importing a submodule does not import the whole language.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cake_ir.facade import lazy

if TYPE_CHECKING:
    from cake_ir.binding import BindResult, bind
    from cake_ir.binding.program import bind_program
    from cake_ir.ident import content_id, variant_id
    from cake_ir.jsonform import from_json, json_schema, to_json
    from cake_ir.text import ParseResult, parse, print_file

_HOME = {
    "BindResult": "cake_ir.binding",
    "bind": "cake_ir.binding",
    "bind_program": "cake_ir.binding.program",
    "ParseResult": "cake_ir.text",
    "parse": "cake_ir.text",
    "print_file": "cake_ir.text",
    "from_json": "cake_ir.jsonform",
    "json_schema": "cake_ir.jsonform",
    "to_json": "cake_ir.jsonform",
    "content_id": "cake_ir.ident",
    "variant_id": "cake_ir.ident",
}

__all__ = [
    "BindResult",
    "ParseResult",
    "bind",
    "bind_program",
    "content_id",
    "from_json",
    "json_schema",
    "parse",
    "print_file",
    "to_json",
    "variant_id",
]

lazy(__name__, _HOME)
