#!/usr/bin/env python3
"""Run the Dockerfile's steps in a fresh directory, for machines without a container engine.

    python tools/docker_dry_run.py [--python /usr/bin/python3.12] [--keep]

COPY takes only files that .dockerignore lets through; RUN lines are executed with `/src`, `/opt/cake` and `/workspace`
mapped below a new temporary directory, with a minimal environment; the entry point is started, when this is root, under
an unprivileged user id. Then it must answer an MCP `initialize` request. What this cannot show: the base image, its C
library, the layers, the NVIDIA runtime.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
UNPRIVILEGED = 10001


def instructions(text: str) -> list[tuple[str, str]]:
    """The Dockerfile as (INSTRUCTION, arguments), comments dropped and continued lines joined."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(line.split(None, 1)[0].upper(), line.split(None, 1)[1].strip()) for line in joined.splitlines()]


def in_context(path: Path, rules: list[str]) -> bool:
    """Whether .dockerignore lets the file through (last matching rule wins)."""
    name, kept = path.relative_to(ROOT).as_posix(), True
    for rule in rules:
        negated, pattern = rule.startswith("!"), rule.lstrip("!")
        tail = pattern[3:] if pattern.startswith("**/") else None
        hit = any(fnmatch.fnmatch(part, tail) for part in name.split("/")) if tail else fnmatch.fnmatch(name, pattern)
        if hit:
            kept = negated
    return kept


def copy(arguments: str, target: Path, rules: list[str]) -> int:
    """COPY into the mapped work directory; returns the number of files."""
    *sources, _ = shlex.split(arguments)
    count = 0
    for source in sources:
        origin = ROOT / source
        files = [origin] if origin.is_file() else [p for p in sorted(origin.rglob("*")) if p.is_file()]
        for file in files:
            if in_context(file, rules):
                to = target / file.relative_to(ROOT)
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(file, to)
                count += 1
    return count


def mapped(text: str, base: Path) -> str:
    """The image's absolute paths, below `base`."""
    return re.sub(r"(?<![\w./])/(src|opt/cake|workspace)\b", lambda m: f"{base}/{m.group(1)}", text)


def ask(entry: list[str], base: Path, drop: bool) -> dict[str, object]:
    """Start the entry point in the workspace and return its answer to `initialize`."""
    env = {"PATH": f"{base}/opt/cake/bin:/usr/bin:/bin", "HOME": str(base / "workspace"), "PYTHONUNBUFFERED": "1"}
    request = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "docker-dry-run", "version": "1"},
        },
    }
    who = {"user": UNPRIVILEGED, "group": UNPRIVILEGED, "extra_groups": []} if drop else {}
    process = subprocess.Popen(
        entry, cwd=base / "workspace", env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **who
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())
    finally:
        process.stdin.close()
        process.wait(timeout=30)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="the interpreter that stands for the base image's")
    parser.add_argument("--keep", action="store_true", help="keep the directory")
    options = parser.parse_args()
    rules = [r for r in (ROOT / ".dockerignore").read_text().split() if r]
    base = Path(tempfile.mkdtemp(prefix="cake-image-"))
    base.chmod(0o755)
    for part in ("src", "opt", "workspace", "bin"):
        (base / part).mkdir()
    (base / "bin" / "python").symlink_to(options.python)
    env = {k: v for k, v in os.environ.items() if k.startswith(("PIP_", "SSL_"))} | {
        "PATH": f"{base}/bin:/usr/bin:/bin",
        "HOME": str(base),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_QUIET": "1",
    }
    entry: list[str] = []
    stage = -1
    for name, arguments in instructions((ROOT / "Dockerfile").read_text()):
        if name == "FROM":
            stage += 1
        elif name == "COPY" and stage == 0:
            print(f"COPY {arguments}: {copy(arguments, base / 'src', rules)} files")
        elif name == "RUN" and stage == 0:
            print(f"RUN {arguments}", flush=True)
            subprocess.run(["bash", "-euc", mapped(arguments, base)], cwd=base / "src", env=env, check=True)
        elif name in ("ENTRYPOINT", "CMD"):
            entry += [mapped(x, base) for x in json.loads(arguments)]
        elif stage > 0:
            print(f"not run here: {name} {arguments}")
    drop = os.geteuid() == 0
    if drop:
        os.chown(base / "workspace", UNPRIVILEGED, UNPRIVILEGED)
    (base / "workspace").chmod(0o700)
    entry[0] = str(base / "opt" / "cake" / "bin" / entry[0])
    print(f"ENTRYPOINT {' '.join(entry)}" + (f" (as user {UNPRIVILEGED})" if drop else ""))
    answer = ask(entry, base, drop)
    result = answer.get("result")
    print(f"initialize: {json.dumps(result)[:300]}")
    size = sum(p.stat().st_size for p in (base / "opt").rglob("*") if p.is_file())
    print(f"/opt/cake: {size / 1e6:.0f} MB")
    if not options.keep:
        shutil.rmtree(base)
    return 0 if isinstance(result, dict) and "serverInfo" in result else 1


if __name__ == "__main__":
    sys.exit(main())
