"""Where log lines go: stderr, whoever runs the engine. stdout belongs to the protocol and to results."""

from __future__ import annotations

import logging
import sys

import structlog


def log_to_stderr(level: int = logging.INFO) -> None:
    """One line per event, traces as they are. Unless told otherwise structlog prints to stdout, and traces with every local
    variable: of a bound kernel those are thousands of lines and seconds of work."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"]),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *names: structlog.WriteLogger(sys.stderr),
    )
