"""Kills writers of the evidence store at random moments and looks at what they leave.

    python -m tools.kill_store [--kills 100] [--servers 10] [--seed 1] [--record]

A writer prints every id after the store has returned from keeping it; it is ended by SIGKILL; then every printed id must
be there, whole, and nothing half-written may be seen. Writers are forked children at work on a store of their own process,
and real stdio servers answering `propose_ir` and `verify`. --record writes corpus/results/durability.json.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import hashlib
import json
import os
import random
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from corpus import evidence
from server.store import Store, StoreError, digest

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "corpus" / "results" / "durability.json"
LONGEST_S = 0.06
"""A forked writer lives at most so long; the shortest lives end while the store is being opened."""
SERVER_S = 0.6
LARGE = 400_000
"""Bytes of the largest artifacts: long enough in writing that kills meet unfinished files."""


@dataclass
class Outcome:
    """What kills did. stored: ids that were answered before the kill. lost: of these, not there afterwards or not as they were
    answered. half_written: visible objects or rows that are not whole. unfinished: files that a kill met while written."""

    writer: str
    kills: int = 0
    stored: int = 0
    unfinished: int = 0
    seconds: float = 0.0
    lost: list[str] = field(default_factory=list)
    half_written: list[str] = field(default_factory=list)
    left_behind: list[str] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        return not (self.lost or self.half_written or self.left_behind)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, with numbers for the lists and their first members."""
        counts = {k: len(getattr(self, k)) for k in ("lost", "half_written", "left_behind")}
        return {
            **asdict(self),
            **counts,
            "first": (self.lost + self.half_written + self.left_behind)[:5],
            "seconds": round(self.seconds, 1),
        }


# ---- writers -------------------------------------------------------------------------------------------------------


def write_for_ever(root: Path, seed: int, pipe: int) -> None:
    """Store one thing after the other and say so, until killed. Runs in a forked child."""
    chance = random.Random(seed)
    store = Store(root)
    for number in range(1_000_000):
        name = f"{seed} {number}"
        kind = chance.choice(("measurement", "artifact", "artifact", "build", "failure", "source", "job"))
        size = chance.choice((200, 5_000, LARGE)) if kind == "artifact" else chance.choice((20, 3_000))
        text = chance.randbytes(size // 2).hex()
        said = keep(store, kind, name, text)
        os.write(pipe, (json.dumps([kind, said, name, hashlib.sha256(text.encode()).hexdigest()]) + "\n").encode())


def keep(store: Store, kind: str, name: str, text: str) -> str:
    """Store `text` as one kind of evidence; its id."""
    if kind == "measurement":
        return store.put_measurement(digest("v", name), "c", {"M": 1}, "device", "bench", "passed", {"text": text})
    if kind == "artifact":
        owner = digest("b", name)
        store.put_artifact(owner, "log", text)
        return owner
    if kind == "build":
        store.put_build(digest("b", name), digest("v", name), "sm_90a", "passed", {"text": text})
        return digest("b", name)
    if kind == "failure":
        store.put_failure(digest("f", name), "verifier", "hang", {"text": text})
        return digest("f", name)
    if kind == "source":
        return store.put_source(name + text)
    store.put_job(digest("job", name), "bench", "passed", {"name": name}, {"text": text})
    return digest("job", name)


def kept(store: Store, kind: str, said: str, name: str) -> str | None:
    """The text that was stored under an id; None when it is not there."""
    if kind == "measurement":
        rows = [r for r in store.measurements(digest("v", name)) if r["measurement_id"] == said]
        return rows[0]["record"]["text"] if rows else None
    if kind == "artifact":
        raw = store.artifact(said, "log")
        return None if raw is None else raw.decode()
    if kind == "source":
        found = store.source_of(said)
        return None if found is None else found[1].removeprefix(name)
    if kind == "job":
        row = store.job(said)
        return row["result"]["text"] if row else None
    row = store.build(said) if kind == "build" else store.failure(said)
    return row["record"]["text"] if row else None


def kill_writers(root: Path, kills: int, seed: int) -> Outcome:
    """`kills` forked writers on one workspace, one after the other, each ended at a random moment."""
    out = Outcome("forked writers")
    begin = time.monotonic()
    chance = random.Random(seed)
    everything: list[list[str]] = []
    for number in range(kills):
        said = one_writer(root, seed * 1_000_003 + number, chance.random() * LONGEST_S)
        out.kills += 1
        everything += said
        out.unfinished += sum(1 for _ in (root / "tmp").iterdir()) if (root / "tmp").exists() else 0
        inspect(root, said, out)
    out.stored = len(everything)
    inspect(root, everything, out, deep=True)
    out.seconds = time.monotonic() - begin
    return out


def one_writer(root: Path, seed: int, seconds: float) -> list[list[str]]:
    """Fork a writer, let it live so long, kill it; the lines it had said."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        try:
            write_for_ever(root, seed, writing)
        finally:
            os._exit(1)
    os.close(writing)
    try:
        time.sleep(seconds)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    with os.fdopen(reading, "rb") as pipe:
        return whole_lines(pipe.read())


def whole_lines(text: bytes) -> list[Any]:
    """The JSON lines of a text whose last line may be torn."""
    return [json.loads(line) for line in text.split(b"\n")[:-1]]


def inspect(root: Path, said: Sequence[Sequence[str]], out: Outcome, deep: bool = False) -> None:
    """Open the store afresh and look for `said`; deep: at every row and file as well."""
    store = Store(root)
    try:
        for kind, name_of, name, sha in said:
            try:
                text = kept(store, kind, name_of, name)
            except (StoreError, ValueError) as exc:
                out.half_written.append(f"{name_of}: {exc}")
                continue
            if text is None or hashlib.sha256(text.encode()).hexdigest() != sha:
                out.lost.append(name_of)
        look(store, root, out, deep)
    finally:
        store.close()


def look(store: Store, root: Path, out: Outcome, deep: bool) -> None:
    """What any reader of the workspace could trip over."""
    check = "integrity_check" if deep else "quick_check"
    verdict = store._one(f"PRAGMA {check}")[0]
    if verdict != "ok":
        out.half_written.append(f"cake.db: {verdict}")
    out.left_behind += [f"tmp/{p.name}" for p in (root / "tmp").iterdir()]
    if not deep:
        return
    for path in (root / "objects").glob("*/*"):
        if hashlib.sha256(path.read_bytes()).hexdigest() != path.name:
            out.half_written.append(f"objects/{path.name[:12]}")
    for row in store._all("SELECT sha FROM artifacts UNION SELECT sha FROM sources"):
        if not (root / "objects" / row["sha"][:2] / row["sha"]).exists():
            out.half_written.append(f"a row without its object {row['sha'][:12]}")
    for table, column in (("measurements", "record"), ("builds", "record"), ("failures", "record"), ("jobs", "result")):
        for row in store._all(f"SELECT {column} AS text FROM {table}"):
            try:
                json.loads(row["text"])
            except ValueError:
                out.half_written.append(f"{table}: a row that is no JSON")


# ---- servers -------------------------------------------------------------------------------------------------------

KERNEL = """
@kernel(target="sm_90a")
def scale_{n}(x: In[f32, M, N], y: Out[f32, M, N]):
    where(N % 4 == 0, N <= 1024)
    launch(ctas=M)
    rows = role(warp, count=1)
    with rows as w:
        v = load(x[cta, 0:], vec(4).cols[1024], fill=0.0)
        store(y[cta, 0:], v * {n}.0)
"""
SERVE = [sys.executable, "-m", "server.cli", "serve", "--no-gpu"]


def requests(number: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Endless tool calls, each about a program of its own."""
    for i in range(1_000_000):
        yield ("propose_ir", "verify")[i % 2], {"text": KERNEL.format(n=number * 10_000 + i // 2)}


def kill_servers(root: Path, kills: int, seed: int) -> Outcome:
    """Real stdio servers on one workspace, each ended at a random moment while it answers."""
    out = Outcome("stdio servers")
    begin = time.monotonic()
    chance = random.Random(seed)
    answers: list[tuple[str, str]] = []
    for number in range(kills):
        answers += one_server(root, number, chance.random() * SERVER_S)
        out.kills += 1
        out.unfinished += sum(1 for _ in (root / "tmp").iterdir()) if (root / "tmp").exists() else 0
        store = Store(root)
        try:
            for text, ir in answers:
                found = store.source_of(ir)
                if found is None or found[1] != text:
                    out.lost.append(ir)
            look(store, root, out, deep=number == kills - 1)
        finally:
            store.close()
    out.stored = len(answers)
    out.seconds = time.monotonic() - begin
    return out


def one_server(root: Path, number: int, seconds: float) -> list[tuple[str, str]]:
    """(text, answered ir_id) of a server that is killed `seconds` after its first answer to a tool call."""
    env = {"PYTHONPATH": str(ROOT), "PATH": os.environ.get("PATH", ""), "HOME": os.environ.get("HOME", "/")}
    server = subprocess.Popen(
        [*SERVE, "--workspace", str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env
    )  # fmt: skip
    assert server.stdin and server.stdout
    sent: dict[int, str] = {}
    got: list[tuple[str, str]] = []

    def send(message: dict[str, Any]) -> None:
        assert server.stdin
        with contextlib.suppress(BrokenPipeError):
            server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
            server.stdin.flush()

    def take(line: bytes) -> None:
        reply = json.loads(line)
        ids = reply.get("result", {}).get("structuredContent", {}).get("ids", {})
        if reply.get("id") in sent and ids.get("ir_id"):
            got.append((sent[reply["id"]], ids["ir_id"]))

    try:
        info = {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "kill_store", "version": "0"},
        }
        send({"id": 0, "method": "initialize", "params": info})
        server.stdout.readline()
        send({"method": "notifications/initialized"})
        for i, (tool, arguments) in zip(range(1, 400), requests(number), strict=False):
            sent[i] = arguments["text"]
            send({"id": i, "method": "tools/call", "params": {"name": tool, "arguments": arguments}})
        take(server.stdout.readline())
        until = time.monotonic() + seconds
        ready = selectors.DefaultSelector()
        ready.register(server.stdout, selectors.EVENT_READ)
        os.set_blocking(server.stdout.fileno(), False)
        rest = b""
        while (left := until - time.monotonic()) > 0:
            if ready.select(left):
                rest += server.stdout.read() or b""
        server.kill()
        server.wait()
        rest += server.stdout.read() or b""  # what the kernel already had: answered as well
        for line in rest.split(b"\n")[:-1]:
            take(line)
    finally:
        server.kill()
        server.wait()
        server.stdin.close()
        server.stdout.close()
    return got


# ---- command -------------------------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """See the module."""
    from corpus.export import head_commit

    cli = argparse.ArgumentParser(prog="tools.kill_store")
    cli.add_argument("--kills", type=int, default=100)
    cli.add_argument("--servers", type=int, default=10)
    cli.add_argument("--seed", type=int, default=1)
    cli.add_argument("--record", action="store_true")
    a = cli.parse_args(argv)
    folder = Path(tempfile.mkdtemp(prefix="cake-kill-"))
    try:
        runs = [kill_writers(folder / "writers", a.kills, a.seed), kill_servers(folder / "servers", a.servers, a.seed)]
    finally:
        shutil.rmtree(folder)
    total = {
        k: sum(r.to_json()[k] for r in runs)
        for k in ("kills", "stored", "lost", "half_written", "left_behind", "unfinished")
    }
    command = f"python -m tools.kill_store --kills {a.kills} --servers {a.servers} --seed {a.seed} --record"
    found = {
        "kind": "durability", **total, "seconds": round(sum(r.seconds for r in runs), 1), "seed": a.seed,
        "runs": [r.to_json() for r in runs], "command": command, "commit": head_commit(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }  # fmt: skip
    print(json.dumps(found, indent=1))
    if a.record:
        evidence.replace(RESULT, found)
    return 0 if all(r.whole for r in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
