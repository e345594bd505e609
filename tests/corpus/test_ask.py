"""A worker asked directly."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from corpus import ask


def test_a_worker_answers_or_says_what_is_wrong() -> None:
    got = ask.ask('{"kind": "check", "contract": "nope"}\n', 60)
    assert got["error"]["code"] == "job/bad-contract"


def test_the_last_answer_counts_and_silence_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"stdout": 'noise\n[1]\n{"progress": 1}\n{"result": {"a": 1}}\n', "stderr": "x" * 2000 + "the end"}
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: SimpleNamespace(**said))
    assert ask.ask("{}", 1) == {"result": {"a": 1}}
    said["stdout"] = '{"progress": 1}\n'
    got = ask.ask("{}", 1)["error"]
    assert got["code"] == "worker/silent" and got["message"].endswith("the end") and len(got["message"]) == 1500

    def late(*a: Any, **k: Any) -> Any:
        raise subprocess.TimeoutExpired("worker", 1)

    monkeypatch.setattr(subprocess, "run", late)
    assert ask.ask("{}", 1)["error"]["code"] == "worker/timeout"
