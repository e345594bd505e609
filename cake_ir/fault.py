"""The one exception of Cake. It stands apart from `cake_ir.diagnostics` so that code that must start in milliseconds (the host
path of `cake_mcp`) can catch it without loading pydantic; the diagnostic that it carries is made when it is raised."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cake_ir.diagnostics import Diagnostic


class CakeError(Exception):
    """A user-facing fault carried as a diagnostic. Never a stack trace for the reader."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        super().__init__(diagnostic.render())
        self.diagnostic = diagnostic


def fault(rule: str, message: str, *, contract: str = "", family: str = "hardware") -> CakeError:
    """The CakeError of a finding without a place in a text. Loads the diagnostics (pydantic), so only when something is wrong."""
    from cake_ir.diagnostics import error

    return CakeError(error(rule, family, message, contract=contract))  # type: ignore[arg-type]
