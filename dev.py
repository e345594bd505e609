#!/usr/bin/env python3
"""Set up and run Cake with nothing but Python 3.11+ and pip.

    python3 dev.py setup    make .venv from requirements.lock (hash-checked) and put this checkout into it
    python3 dev.py demo     set up, then the whole loop through a real MCP client (`cake demo`)
    python3 dev.py test     set up, then every check: ruff, import contracts, pyright, generated docs, pytest
    python3 dev.py mutation set up, then the mutation run over the verifier (`--help` lists its options; docs/mutation.md)

Set-up is skipped when nothing changed. Exit status: 0 good, 1 a check failed, 2 it could not be set up.
Everything after the command is passed on: to `cake demo`, to pytest for `test`, to the run for `mutation`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
LOCK = ROOT / "requirements.lock"
STAMP = VENV / "cake-setup.txt"
BIN = VENV / ("Scripts" if os.name == "nt" else "bin")
EXE = ".exe" if os.name == "nt" else ""
MINIMUM = (3, 11)


class SetupError(Exception):
    """Set-up cannot go on; the text says what to do about it."""


def say(text: str) -> None:
    print(text, flush=True)


def fingerprint() -> str:
    """What the environment depends on: the lock, the package metadata, the interpreter and where the checkout lies."""
    digest = hashlib.sha256()
    for part in (LOCK.read_bytes(), (ROOT / "pyproject.toml").read_bytes(), sys.version.encode(), str(ROOT).encode()):
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()


def run(command: list[str | Path], what: str) -> None:
    """Run a set-up command in the checkout. Raises SetupError with the tail of its output."""
    done = subprocess.run(
        [str(c) for c in command], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if done.returncode != 0:
        tail = "\n".join(done.stdout.strip().splitlines()[-25:])
        raise SetupError(f"{what} failed (exit {done.returncode}):\n{tail}")


def make_venv() -> list[str | Path]:
    """Make .venv if it is missing or broken; returns the pip command that installs into it."""
    python = BIN / f"python{EXE}"
    own_pip: list[str | Path] = [python, "-m", "pip"]
    if python.exists():
        if subprocess.run([str(python), "-c", "import pip"], capture_output=True).returncode == 0:
            return own_pip
        say("  .venv has no working pip: making it anew")
        shutil.rmtree(VENV, ignore_errors=True)
    if importlib.util.find_spec("venv") is None:
        raise SetupError("this Python has no 'venv' module; install it (Debian, Ubuntu: apt-get install python3-venv)")
    if importlib.util.find_spec("ensurepip") is not None:
        run([sys.executable, "-m", "venv", VENV], "making .venv")
        return own_pip
    # Distributions that split ensurepip off: the pip of this Python can install into a venv that has none.
    if importlib.util.find_spec("pip") is None:
        raise SetupError(
            "this Python has neither 'ensurepip' nor 'pip'; install one (Debian, Ubuntu: apt-get install python3-venv)"
        )
    run([sys.executable, "-m", "venv", "--without-pip", VENV], "making .venv")
    return [sys.executable, "-m", "pip", "--python", python]


def setup() -> None:
    """Bring .venv in line with requirements.lock; does nothing when it already is. Raises SetupError."""
    mark = fingerprint()
    if STAMP.exists() and STAMP.read_text().strip() == mark and (BIN / f"cake{EXE}").exists():
        return
    started = time.monotonic()
    say("setting up .venv (first time: some 370 MB of wheels)")
    pip = make_venv()
    quiet: list[str | Path] = ["--quiet", "--disable-pip-version-check", "--no-input"]
    say("  installing requirements.lock")
    run([*pip, "install", *quiet, "--require-hashes", "-r", LOCK], "installing requirements.lock")
    say("  installing this checkout")
    # The build backend is in the lock: nothing unpinned is fetched for the build.
    run([*pip, "install", *quiet, "--no-deps", "--no-build-isolation", "-e", ROOT], "installing this checkout")
    STAMP.write_text(mark + "\n")
    say(f"  done in {time.monotonic() - started:.0f} s")


def environment() -> dict[str, str]:
    """The environment of the checks: the tools of .venv first."""
    env = dict(os.environ)
    env["PATH"] = f"{BIN}{os.pathsep}{env.get('PATH', '')}"
    env["VIRTUAL_ENV"] = str(VENV)
    env.pop("PYTHONHOME", None)
    return env


def step(name: str, command: list[str | Path]) -> tuple[str, bool, float]:
    """Run one check with its output shown; returns name, success and seconds."""
    say(f"\n== {name}: {' '.join(Path(str(c)).name if i == 0 else str(c) for i, c in enumerate(command))}")
    started = time.monotonic()
    code = subprocess.run([str(c) for c in command], cwd=ROOT, env=environment()).returncode
    return name, code == 0, time.monotonic() - started


def beside(name: str, command: list[str | Path]) -> Callable[[], tuple[str, bool, float]]:
    """Begin a check whose output is shown when its result is asked for; that waits for its end."""
    words = [str(c) for c in command]
    started, found = time.monotonic(), []

    def work() -> None:
        pipe = {"text": True, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        try:
            done = subprocess.run(words, cwd=ROOT, env=environment(), **pipe)
            found.append((done.returncode == 0, done.stdout))
        except OSError as problem:
            found.append((False, str(problem)))
        found.append(time.monotonic() - started)

    thread = threading.Thread(target=work, name=name)
    thread.start()

    def result() -> tuple[str, bool, float]:
        thread.join()
        (good, said), seconds = found
        say(f"\n== {name}: {' '.join([Path(words[0]).name, *words[1:]])}\n{said.rstrip()}")
        return name, good, seconds

    return result


def test(extra: list[str]) -> int:
    """Every check; all of them run even if one fails. Types take one core for a minute, beside the tests."""
    python = BIN / f"python{EXE}"
    results = [
        step("lint", [BIN / f"ruff{EXE}", "check", "."]),
        step("imports", [BIN / f"lint-imports{EXE}"]),
        step("docs", [python, "tools/gen_docs.py", "--check"]),
    ]
    types = beside("types", [python, "-m", "pyright"])
    # Files start in the order that tests/conftest.py gives them.
    parallel: list[str | Path] = ["-n", "auto", "--dist", "loadfile", "--no-loadscope-reorder"]
    tests = step("tests", [python, "-m", "pytest", "-q", *parallel, *extra])
    results += [types(), tests]
    say("")
    for name, good, seconds in results:
        say(f"{'ok    ' if good else 'FAILED'} {name:8} {seconds:6.1f} s")
    return 0 if all(good for _, good, _ in results) else 1


def demo(extra: list[str]) -> int:
    """The loop of the README through a real MCP client."""
    return subprocess.run([str(BIN / f"cake{EXE}"), "demo", *extra], env=environment()).returncode


def mutation(extra: list[str]) -> int:
    """The mutation run; worker processes are the parallelism, so numerical libraries get one thread each."""
    env = {**environment(), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run([str(BIN / f"python{EXE}"), "-m", "tests.mutation.run", *extra], cwd=ROOT, env=env).returncode


def main(argv: list[str]) -> int:
    if sys.version_info < MINIMUM:
        say(
            f"Cake needs Python {MINIMUM[0]}.{MINIMUM[1]} or newer; this is {sys.version.split()[0]} ({sys.executable})"
        )
        return 2
    command, extra = (argv[0], argv[1:]) if argv else ("", [])
    if command not in ("setup", "demo", "test", "mutation"):
        say((__doc__ or "").strip())
        return 0 if command in ("-h", "--help", "help") else 2
    try:
        setup()
    except SetupError as problem:
        say(f"set-up: {problem}")
        return 2
    if command == "demo":
        return demo(extra)
    if command == "mutation":
        return mutation(extra)
    return test(extra) if command == "test" else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
