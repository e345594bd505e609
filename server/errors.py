"""Coded, anticipated failures of the server. Each one says what to do next; none carries a stack trace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from server.results import Result, clean, fit, plain


class EngineError(Exception):
    """An answer the caller can act on.

    `code` is stable ("args/unknown-id"); `message` names the numbers; `next` says what to do; `ids` name what was
    recorded about it; `data` is the evidence. Raised by the engine and turned into `isError` results by the MCP tools
    and into exit code 2 by the command line.
    """

    def __init__(
        self,
        code: str,
        message: str,
        next: str = "",
        ids: Mapping[str, str] | None = None,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.ids = dict(ids or {})
        self.data = dict(data or {})
        self.code = code
        self.message = clean(message, 1_000)
        self.next = clean(next, 600)

    def result(self) -> Result:
        """The answer, within the budget of a concise one."""
        return fit(
            Result(
                summary=self.message,
                status="error",
                code=self.code,
                ids=dict(self.ids),
                data=plain(self.data),
                next=self.next,
            )
        )


class BadArgument(EngineError):
    """The arguments contradict each other or name something that does not exist."""

    def __init__(self, message: str, next: str = "", code: str = "args/invalid") -> None:
        super().__init__(code, message, next)


class UnknownId(EngineError):
    """A well-formed handle that this workspace does not hold."""

    def __init__(self, what: str, given: str) -> None:
        super().__init__(
            "args/unknown-id",
            f"this workspace holds no {what} with id {clean(given, 80)!r}",
            "ids live as long as the workspace directory; "
            + {
                "job": "make the call again without job_id",
                "profile": "profile the reference again and give the measurement_id of that answer",
            }.get(what, "call propose_ir with the whole text for a fresh one"),
        )


class Missing(EngineError):
    """A component that is not installed, or a GPU that is not there."""


class Cancelled(EngineError):
    """The caller gave up; the child process is gone."""

    def __init__(self) -> None:
        super().__init__(
            "job/cancelled", "the work was cancelled and its process ended", "call again to start it afresh"
        )
