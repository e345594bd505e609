"""The text form: `parse` reads it, `print_file` writes it canonically."""

from cake_ir.text.parser import ParseResult, parse
from cake_ir.text.printer import print_expr, print_file

__all__ = ["ParseResult", "parse", "print_expr", "print_file"]
