"""The checkout as a product: generated docs, lock file, set-up script, container recipe."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("cake_mcp", "server", "cake_ir", "analyses", "lowering", "corpus")
LOCK = (ROOT / "requirements.lock").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def _load(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _locked() -> set[str]:
    return set(re.findall(r"^([a-z0-9._-]+)==", LOCK, re.M))


def test_packages_are_this_checkouts() -> None:
    assert tuple(PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]) == PACKAGES
    for name in PACKAGES:
        found = importlib.import_module(name)
        assert found.__file__ is not None and Path(found.__file__).parent == ROOT / name


def test_the_wheel_ships_every_file_of_the_packages(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)], cwd=ROOT,
                          capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    shipped = set(zipfile.ZipFile(wheel).namelist())
    tracked = subprocess.run(["git", "ls-files", *PACKAGES], cwd=ROOT, capture_output=True, text=True).stdout.split()
    pages = {p.relative_to(ROOT).as_posix() for p in (ROOT / "server/report/templates").iterdir()}
    assert {"server/report/templates/evidence.html.j2", "server/report/templates/style.css"} <= pages
    assert (pages | {name for name in tracked if (ROOT / name).exists()}) <= shipped


def test_generated_pages_are_up_to_date() -> None:
    assert _load("tools/gen_docs.py").outdated() == [], "run python tools/gen_docs.py"


def test_lock_is_hashed_and_names_no_host() -> None:
    assert not re.search(r"https?:|file:|://|--(extra-)?index|--find-links|--trusted", LOCK)
    blocks = re.split(r"\n(?=[a-z0-9._-]+==)", LOCK.strip())
    assert len(blocks) > 40
    assert all("--hash=sha256:" in block for block in blocks)


def test_lock_covers_what_the_project_asks_for() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    wanted = PROJECT["project"]["dependencies"] + extras["cuda"] + extras["dev"]
    names = {re.split(r"[\s\[<>=;!~]", w, maxsplit=1)[0].lower().replace("_", "-") for w in wanted}
    assert names <= _locked(), names - _locked()
    assert not {"torch", "flashlib", "flash-kmeans"} & _locked()


def test_every_module_imports_without_a_gpu_or_an_environment() -> None:
    code = f"import {', '.join(PACKAGES)}, cake_ir.targets; print(cake_ir.targets.names()[0])"
    done = subprocess.run([sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); {code}"],
                          env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True)  # fmt: skip
    assert done.stdout == "sm_80\n", done.stderr


def test_readme_names_exactly_the_commands_there_are() -> None:
    from server.cli import cli

    text = (ROOT / "README.md").read_text()
    named = set(re.findall(r"`cake ([a-z]+)", text))
    assert named == set(cli.commands)
    flags = set(re.findall(r"`(--[a-z-]+)", text)) | set(re.findall(r"\[(--[a-z-]+)", text))
    known = {o for c in cli.commands.values() for p in c.params for o in p.opts}
    assert flags <= known, flags - known


def test_readme_and_docs_links_resolve() -> None:
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name}: {link}"
        for link, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text()):
            heads = re.findall(r"^#+ (.*)$", ((page.parent / link) if link else page).read_text(), re.M)
            assert anchor in {_anchor(h) for h in heads}, f"{page.name}: {link}#{anchor}"


def test_every_page_is_linked_from_another() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    linked = {(p.parent / link).resolve() for p in pages for link in re.findall(r"\]\(([^)#:]+)", p.read_text())}
    assert {p.name for p in pages[1:] if p not in linked} == set()


def _anchor(heading: str) -> str:
    """What a heading is linked by, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


# ---- dev.py --------------------------------------------------------------------------------------------------------


def _dev(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(ROOT / "dev.py"), *arguments], capture_output=True, text=True)


def test_dev_says_how_it_is_used() -> None:
    assert _dev().returncode == 2 and "dev.py demo" in _dev().stdout
    assert _dev("--help").returncode == 0
    assert _dev("tset").returncode == 2


def test_dev_names_the_missing_module(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dev = _load("dev.py")
    monkeypatch.setattr(dev, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(dev, "BIN", tmp_path / ".venv" / "bin")
    monkeypatch.setattr(dev, "STAMP", tmp_path / ".venv" / "stamp")
    monkeypatch.setattr(dev.importlib.util, "find_spec", lambda name: None)
    assert dev.main(["setup"]) == 2
    assert "apt-get install python3-venv" in capsys.readouterr().out
    assert not (tmp_path / ".venv").exists()


def test_dev_reports_a_failing_installation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    dev = _load("dev.py")
    with pytest.raises(dev.SetupError, match=r"(?s)probing failed \(exit 3\).*no such wheel"):
        dev.run([sys.executable, "-c", "import sys; print('no such wheel'); sys.exit(3)"], "probing")


def test_dev_fingerprint_follows_the_lock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    dev = _load("dev.py")
    before = dev.fingerprint()
    assert before == dev.fingerprint()
    changed = tmp_path / "lock"
    changed.write_text(LOCK + "\n")
    monkeypatch.setattr(dev, "LOCK", changed)
    assert dev.fingerprint() != before


def test_dev_runs_every_check_even_when_one_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    dev = _load("dev.py")
    seen: list[str] = []

    def fake(name: str, command: list[object]) -> tuple[str, bool, float]:
        seen.append(name)
        return name, name != "types", 0.1

    monkeypatch.setattr(dev, "step", fake)
    monkeypatch.setattr(dev, "beside", lambda name, command: lambda: fake(name, command))
    assert dev.test([]) == 1
    assert seen == ["lint", "imports", "docs", "tests", "types"]
    assert "FAILED types" in capsys.readouterr().out


def test_a_check_beside_the_tests_is_shown_and_judged_at_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    dev = _load("dev.py")
    bad = dev.beside("types", [sys.executable, "-c", "print('1 error'); raise SystemExit(1)"])
    good = dev.beside("types", [sys.executable, "-c", "print('0 errors')"])
    missing = dev.beside("types", [ROOT / "no-such-tool"])
    assert capsys.readouterr().out == ""
    assert bad()[:2] == ("types", False) and "1 error" in capsys.readouterr().out
    assert good()[:2] == ("types", True) and "0 errors" in capsys.readouterr().out
    assert missing()[:2] == ("types", False) and "no-such-tool" in capsys.readouterr().out


def test_ci_script_is_executable_and_strict() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert "set -euo pipefail" in script.read_text()
    assert subprocess.run(["bash", "-n", str(script)]).returncode == 0


# ---- container recipe ----------------------------------------------------------------------------------------------


def test_dockerfile_is_pinned_non_root_and_serves() -> None:
    dry = _load("tools/docker_dry_run.py")
    steps = dry.instructions((ROOT / "Dockerfile").read_text())
    bases = [a.split()[0] for n, a in steps if n == "FROM"]
    assert bases and all(re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+", b) for b in bases) and len(set(bases)) == 1
    users = [a for n, a in steps if n == "USER"]
    assert users == ["cake"]
    assert ("ENTRYPOINT", '["cake", "serve"]') in steps
    assert any("--require-hashes -r requirements.lock" in a for n, a in steps if n == "RUN")
    copied = {word for n, a in steps if n == "COPY" for word in a.split()}
    assert set(PACKAGES) <= copied


def test_tools_removed_from_the_image_are_locked_development_tools() -> None:
    removal = re.search(r"pip uninstall -y --quiet ((?:[\w-]+|\\\n|\s)+?)&&", (ROOT / "Dockerfile").read_text())
    assert removal is not None
    removed = set(removal.group(1).replace("\\", " ").split())
    assert removed <= _locked(), removed - _locked()
    runtime = {re.split(r"[\s<>=;]", d, maxsplit=1)[0] for d in PROJECT["project"]["dependencies"]}
    assert not removed & runtime


def test_build_context_has_the_packages_and_nothing_private() -> None:
    dry = _load("tools/docker_dry_run.py")
    rules = (ROOT / ".dockerignore").read_text().split()
    assert dry.in_context(ROOT / "cake_ir/targets/sm_90a.py", rules)
    assert dry.in_context(ROOT / "requirements.lock", rules)
    for path in ("tests/test_packaging.py", ".git/config", ".venv/bin/python", "cake_ir/__pycache__/x.pyc", ".env"):
        assert not dry.in_context(ROOT / path, rules), path
