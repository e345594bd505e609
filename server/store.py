"""The workspace: one private directory with an SQLite evidence store and content-addressed files.

Layout (all 0700/0600): `cake.db` (WAL), `objects/ab/<sha256>` (artifact bytes), `tmp/` (unfinished writes),
`cubins/` (the compiler's cache). Programs, variants, verdicts, builds, measurements, failures and jobs are rows keyed
by content ids, so the same evidence is stored once. A file becomes visible by an atomic rename, a row by a transaction:
a full disk or a crash loses the write in progress and nothing else. What a method has returned is on disk (file, its
directory entry, and the database's log are synchronised first), so an answer never names evidence that a crash could take.

Raises `StoreError` with codes storage/full, storage/limit, storage/unavailable; never a bare sqlite3 or OS error.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import sqlite3
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from server.errors import EngineError
from server.results import Artifact

ID = re.compile(r"[a-z]+_[0-9a-f]{16,64}")
KIND = re.compile(r"[a-z][a-z0-9_-]{0,31}")

MAX_OBJECT_BYTES = 32 * 2**20
DEFAULT_LIMIT_BYTES = 4 * 2**30

_SCHEMA = """
CREATE TABLE IF NOT EXISTS sources (
  source_id TEXT PRIMARY KEY, sha TEXT NOT NULL, bytes INTEGER NOT NULL, created REAL NOT NULL);
CREATE TABLE IF NOT EXISTS programs (
  ir_id TEXT PRIMARY KEY, source_id TEXT NOT NULL, name TEXT NOT NULL, created REAL NOT NULL);
CREATE TABLE IF NOT EXISTS variants (
  variant_id TEXT PRIMARY KEY, ir_id TEXT NOT NULL, bindings TEXT NOT NULL, target TEXT NOT NULL, kernel TEXT NOT NULL,
  created REAL NOT NULL);
CREATE TABLE IF NOT EXISTS verdicts (
  variant_id TEXT NOT NULL, source_id TEXT NOT NULL, status TEXT NOT NULL, rules TEXT NOT NULL, created REAL NOT NULL,
  PRIMARY KEY (variant_id, source_id));
CREATE TABLE IF NOT EXISTS builds (
  build_id TEXT PRIMARY KEY, variant_id TEXT NOT NULL, target TEXT NOT NULL, status TEXT NOT NULL, record TEXT NOT NULL,
  created REAL NOT NULL);
CREATE TABLE IF NOT EXISTS measurements (
  measurement_id TEXT PRIMARY KEY, variant_id TEXT NOT NULL, contract TEXT NOT NULL, shape TEXT NOT NULL,
  device TEXT NOT NULL, kind TEXT NOT NULL, verdict TEXT NOT NULL, record TEXT NOT NULL, created REAL NOT NULL);
CREATE TABLE IF NOT EXISTS failures (
  failure_id TEXT PRIMARY KEY, owner TEXT NOT NULL, symptom TEXT NOT NULL, count INTEGER NOT NULL, record TEXT NOT NULL,
  first REAL NOT NULL, last REAL NOT NULL);
CREATE TABLE IF NOT EXISTS jobs (
  job_id TEXT PRIMARY KEY, kind TEXT NOT NULL, status TEXT NOT NULL, request TEXT NOT NULL, result TEXT NOT NULL,
  created REAL NOT NULL, updated REAL NOT NULL);
CREATE TABLE IF NOT EXISTS artifacts (
  owner TEXT NOT NULL, kind TEXT NOT NULL, sha TEXT NOT NULL, bytes INTEGER NOT NULL, lines INTEGER NOT NULL,
  created REAL NOT NULL, PRIMARY KEY (owner, kind));
CREATE INDEX IF NOT EXISTS measurements_variant ON measurements (variant_id, contract);
PRAGMA user_version = 1;
"""


class StoreError(EngineError):
    """The workspace cannot take or give what was asked for."""


def digest(prefix: str, *parts: Any) -> str:
    """`prefix_` + 32 hex digits over the canonical JSON of the parts."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str)
    return f"{prefix}_{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def is_id(text: str, prefix: str = "") -> bool:
    """Whether `text` is a well-formed id, of the given kind if named."""
    return ID.fullmatch(text) is not None and (not prefix or text.startswith(prefix + "_"))


@contextmanager
def _coded(action: str) -> Iterator[None]:
    """Turn storage faults into coded answers. Nothing that was stored before is touched by a failed write."""
    try:
        yield
    except sqlite3.Error as exc:
        full = "full" in str(exc) or "disk I/O" in str(exc)
        code = "storage/full" if full else "storage/unavailable"
        raise StoreError(code, f"the workspace could not {action}: {exc}", _advice(code)) from exc
    except OSError as exc:
        full = exc.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        code = "storage/full" if full else "storage/unavailable"
        raise StoreError(code, f"the workspace could not {action}: {exc.strerror or exc}", _advice(code)) from exc


def _sync(directory: Path) -> None:
    """Put a directory's entries on disk."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _advice(code: str) -> str:
    if code == "storage/full":
        return (
            "free space on the workspace's disk or start the server with another --workspace; stored evidence is intact"
        )
    return "check that the workspace directory exists, belongs to this user and is writable (see `cake doctor`)"


class Store:
    """The evidence store. Thread safe: one connection behind a lock.

    `read_only` works on an in-memory copy: the directory is never written, new rows live as long as the process.
    `or_memory` does the same when the workspace cannot be opened; `problem` then holds why, and `require` tries again.
    """

    def __init__(
        self,
        root: Path,
        *,
        read_only: bool = False,
        limit_bytes: int = DEFAULT_LIMIT_BYTES,
        or_memory: bool = False,
    ) -> None:
        self.root = root
        self.read_only = read_only
        self.limit_bytes = limit_bytes
        self.problem: StoreError | None = None
        self._lock = threading.RLock()
        self._scratch: dict[str, bytes] = {}
        try:
            self._db = self._ready()
        except StoreError as exc:
            if not or_memory:
                raise
            self.problem, self.read_only = exc, True
            self._db = self._ready()
        self._used = int(self._one("SELECT COALESCE(SUM(bytes), 0) AS n FROM artifacts")["n"])

    def _ready(self) -> sqlite3.Connection:
        with _coded("be opened"):
            db = self._open_copy() if self.read_only else self._open()
            db.row_factory = sqlite3.Row
            with db:
                db.executescript(_SCHEMA)
            return db

    def require(self) -> None:
        """For what exists to be kept: open a workspace that could not be opened before. Raises StoreError."""
        with self._lock:
            if self.problem is None:
                return
            self.read_only = False
            try:
                db = self._ready()
            except StoreError as exc:
                self.problem, self.read_only = exc, True
                raise
            self._db.close()
            self._db, self.problem = db, None
            self._used = int(self._one("SELECT COALESCE(SUM(bytes), 0) AS n FROM artifacts")["n"])

    def _open(self) -> sqlite3.Connection:
        for path in (self.root, self.root / "objects", self.root / "tmp", self.root / "cubins"):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.chmod(self.root, 0o700)
        self._sweep()
        path = self.root / "cake.db"
        # SQLite gives -wal and -shm the mode of the database file, so that one is made private first.
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        for private in (path, path.with_name("cake.db-wal"), path.with_name("cake.db-shm")):
            if private.exists():
                os.chmod(private, 0o600)
        db = sqlite3.connect(path, timeout=10, check_same_thread=False)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        return db

    def _open_copy(self) -> sqlite3.Connection:
        db = sqlite3.connect(":memory:", check_same_thread=False)
        path = self.root / "cake.db"
        try:
            self._copy_into(db, path)
        except (OSError, sqlite3.Error):
            if self.problem is None:
                raise
        return db

    def _copy_into(self, db: sqlite3.Connection, path: Path) -> None:
        if path.exists():
            # Without a live writer the file is complete; "immutable" then keeps SQLite from making -wal and -shm files.
            wal = path.with_name("cake.db-wal")
            how = "mode=ro" if wal.exists() and wal.stat().st_size else "mode=ro&immutable=1"
            source = sqlite3.connect(f"{path.resolve().as_uri()}?{how}", uri=True)
            try:
                source.backup(db)
            finally:
                source.close()

    def close(self) -> None:
        with self._lock:
            self._db.close()

    # ---- rows ------------------------------------------------------------------------------------------------------

    def _one(self, sql: str, *args: Any) -> Any:
        with self._lock, _coded("be read"):
            return self._db.execute(sql, args).fetchone()

    def _all(self, sql: str, *args: Any) -> list[Any]:
        with self._lock, _coded("be read"):
            return self._db.execute(sql, args).fetchall()

    def _write(self, action: str, sql: str, *args: Any) -> None:
        with self._lock, _coded(action), self._db:
            self._db.execute(sql, args)

    # ---- programs --------------------------------------------------------------------------------------------------

    def put_source(self, text: str) -> str:
        """Store a submitted text, parsable or not. Returns `src_` + hash of the exact text."""
        source_id = digest("src", text)
        if self._one("SELECT 1 FROM sources WHERE source_id = ?", source_id) is None:
            sha = self._put_object(text.encode())
            self._write(
                "store the text",
                "INSERT OR IGNORE INTO sources VALUES (?,?,?,?)",
                source_id,
                sha,
                len(text.encode()),
                time.time(),
            )
        return source_id

    def put_program(self, ir_id: str, source_id: str, name: str) -> None:
        """Remember which text an `ir_` id was last submitted as; earlier texts keep their own `src_` id."""
        self._write(
            "store the program",
            "INSERT INTO programs VALUES (?,?,?,?) ON CONFLICT(ir_id) DO UPDATE SET source_id = excluded.source_id",
            ir_id,
            source_id,
            name,
            time.time(),
        )

    def source_of(self, any_id: str) -> tuple[str, str] | None:
        """(source_id, text) of a `src_`, `ir_` or `v_` id; None when it is not here."""
        row = None
        if is_id(any_id, "src"):
            row = self._one("SELECT source_id, sha FROM sources WHERE source_id = ?", any_id)
        elif is_id(any_id, "ir"):
            row = self._one(
                "SELECT s.source_id, s.sha FROM programs p JOIN sources s USING (source_id) WHERE p.ir_id = ?", any_id
            )
        if row is None:
            return None
        return row["source_id"], self._get_object(row["sha"]).decode()

    def put_variant(self, variant_id: str, ir_id: str, bindings: dict[str, Any], target: str, kernel: str) -> None:
        self._write(
            "store the variant",
            "INSERT OR IGNORE INTO variants VALUES (?,?,?,?,?,?)",
            variant_id,
            ir_id,
            json.dumps(bindings, sort_keys=True),
            target,
            kernel,
            time.time(),
        )

    def put_variants(self, rows: Sequence[tuple[str, str, Mapping[str, Any], str, str]]) -> None:
        """`put_variant` of many (variant_id, ir_id, bindings, target, kernel), in one transaction."""
        now = time.time()
        plain = [(v, ir, json.dumps(b, sort_keys=True), target, kernel, now) for v, ir, b, target, kernel in rows]
        with self._lock, _coded("store the variants"), self._db:
            self._db.executemany("INSERT OR IGNORE INTO variants VALUES (?,?,?,?,?,?)", plain)

    def variant(self, variant_id: str) -> dict[str, Any] | None:
        row = self._one("SELECT * FROM variants WHERE variant_id = ?", variant_id)
        return None if row is None else {**dict(row), "bindings": json.loads(row["bindings"])}

    def variants(self, ir_id: str | None = None) -> list[dict[str, Any]]:
        """Variants of a program, or all, oldest first."""
        rows = self._all("SELECT * FROM variants WHERE ? IS NULL OR ir_id = ? ORDER BY created", ir_id, ir_id)
        return [{**dict(r), "bindings": json.loads(r["bindings"])} for r in rows]

    def put_verdict(
        self, variant_id: str, source_id: str, status: str, rules: Sequence[str], undecided: Sequence[str] = ()
    ) -> None:
        """Keep what the verifier said: status, rules of the errors, what it left undecided."""
        self._write(
            "store the verdict",
            "INSERT OR REPLACE INTO verdicts VALUES (?,?,?,?,?)",
            variant_id,
            source_id,
            status,
            json.dumps({"rules": [*rules], "undecided": [*undecided]}),
            time.time(),
        )

    def verdict(self, variant_id: str) -> dict[str, Any] | None:
        row = self._one("SELECT * FROM verdicts WHERE variant_id = ? ORDER BY created DESC LIMIT 1", variant_id)
        if row is None:
            return None
        said = json.loads(row["rules"])
        return {**dict(row), **(said if isinstance(said, dict) else {"rules": said, "undecided": []})}

    # ---- builds, measurements, failures, jobs ----------------------------------------------------------------------

    def put_build(self, build_id: str, variant_id: str, target: str, status: str, record: dict[str, Any]) -> None:
        self._write(
            "store the build",
            "INSERT OR REPLACE INTO builds VALUES (?,?,?,?,?,?)",
            build_id,
            variant_id,
            target,
            status,
            json.dumps(record),
            time.time(),
        )

    def build(self, build_id: str) -> dict[str, Any] | None:
        row = self._one("SELECT * FROM builds WHERE build_id = ?", build_id)
        return None if row is None else {**dict(row), "record": json.loads(row["record"])}

    def builds(self, variant_id: str | None = None) -> list[dict[str, Any]]:
        """Builds of a variant, or all, oldest first."""
        rows = self._all(
            "SELECT * FROM builds WHERE ? IS NULL OR variant_id = ? ORDER BY created", variant_id, variant_id
        )
        return [{**dict(r), "record": json.loads(r["record"])} for r in rows]

    def put_measurement(
        self,
        variant_id: str,
        contract: str,
        shape: Mapping[str, Any],
        device: str,
        kind: str,
        verdict: str,
        record: dict[str, Any],
    ) -> str:
        """Append one check, timing or profile record. `kind`: check-cpu, check-gpu, bench or profile."""
        created = time.time()
        measurement_id = digest("m", variant_id, contract, shape, device, kind, created)
        self._write(
            "store the measurement",
            "INSERT INTO measurements VALUES (?,?,?,?,?,?,?,?,?)",
            measurement_id,
            variant_id,
            contract,
            json.dumps(shape, sort_keys=True),
            device,
            kind,
            verdict,
            json.dumps(record),
            created,
        )
        return measurement_id

    def put_measurements(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Store many records at once, all or none. Each gives the columns of `put_measurement` and its own `measurement_id`; one that
        is here already stays."""
        now = time.time()
        plain = [
            (
                r["measurement_id"], r["variant_id"], r["contract"], json.dumps(r["shape"], sort_keys=True), r["device"], r["kind"],
                r["verdict"], json.dumps(r["record"]), now,
            )
            for r in rows
        ]  # fmt: skip
        with self._lock, _coded("store the measurements"), self._db:
            self._db.executemany("INSERT OR IGNORE INTO measurements VALUES (?,?,?,?,?,?,?,?,?)", plain)

    def measurements(
        self, variant_id: str, contract: str | None = None, kind: str | None = None
    ) -> list[dict[str, Any]]:
        rows = self._all(
            "SELECT * FROM measurements WHERE variant_id = ? AND (? IS NULL OR contract = ?) "
            "AND (? IS NULL OR kind = ?) ORDER BY created",
            variant_id,
            contract,
            contract,
            kind,
            kind,
        )
        return [{**dict(r), "shape": json.loads(r["shape"]), "record": json.loads(r["record"])} for r in rows]

    def timed_contracts(self) -> list[str]:
        """Contracts under which something was timed."""
        return [r["contract"] for r in self._all("SELECT DISTINCT contract FROM measurements WHERE kind = 'bench'")]

    def predicted_timings(self, device: str, contracts: Sequence[str], most: int = 400) -> list[dict[str, Any]]:
        """What was predicted and measured (`server.predictions`) on a device (its name), latest first: `variant_id`, `kernel`,
        `contract`, `model`, of timings under these contracts."""
        marks = ",".join("?" * len(contracts))
        rows = self._all(
            "SELECT m.variant_id, v.kernel, m.contract, json_extract(m.record, '$.model') AS model "
            "FROM measurements m JOIN variants v USING (variant_id) WHERE m.device = ? AND m.kind = 'bench' "
            f"AND m.contract IN ({marks}) AND model IS NOT NULL ORDER BY m.created DESC LIMIT ?",
            device,
            *contracts,
            most,
        )
        return [{**dict(r), "model": json.loads(r["model"])} for r in rows]

    def measurement(self, measurement_id: str) -> dict[str, Any] | None:
        """One record by its id; None when it is not here."""
        row = self._one("SELECT * FROM measurements WHERE measurement_id = ?", measurement_id)
        return (
            None
            if row is None
            else {**dict(row), "shape": json.loads(row["shape"]), "record": json.loads(row["record"])}
        )

    def put_failure(self, failure_id: str, owner: str, symptom: str, record: dict[str, Any]) -> int:
        """Store a failure or count it up. Returns how often this signature was seen."""
        now = time.time()
        self._write(
            "store the failure",
            "INSERT INTO failures VALUES (?,?,?,1,?,?,?) "
            "ON CONFLICT(failure_id) DO UPDATE SET count = count + 1, last = excluded.last",
            failure_id,
            owner,
            symptom,
            json.dumps(record),
            now,
            now,
        )
        return int(self._one("SELECT count FROM failures WHERE failure_id = ?", failure_id)["count"])

    def failure(self, failure_id: str) -> dict[str, Any] | None:
        row = self._one("SELECT * FROM failures WHERE failure_id = ?", failure_id)
        return None if row is None else {**dict(row), "record": json.loads(row["record"])}

    def failures(self) -> list[dict[str, Any]]:
        return [
            {**dict(r), "record": json.loads(r["record"])}
            for r in self._all("SELECT * FROM failures ORDER BY last DESC")
        ]

    def put_job(
        self, job_id: str, kind: str, status: str, request: dict[str, Any], result: dict[str, Any] | None = None
    ) -> None:
        now = time.time()
        self._write(
            "store the job",
            "INSERT INTO jobs VALUES (?,?,?,?,?,?,?) ON CONFLICT(job_id) DO UPDATE SET status = excluded.status, "
            "result = excluded.result, updated = excluded.updated",
            job_id,
            kind,
            status,
            json.dumps(request, sort_keys=True),
            json.dumps(result),
            now,
            now,
        )

    def job(self, job_id: str) -> dict[str, Any] | None:
        row = self._one("SELECT * FROM jobs WHERE job_id = ?", job_id)
        if row is None:
            return None
        return {**dict(row), "request": json.loads(row["request"]), "result": json.loads(row["result"])}

    def counts(self) -> dict[str, int]:
        """Rows per table, for `cake doctor`."""
        tables = (
            "sources",
            "programs",
            "variants",
            "verdicts",
            "builds",
            "measurements",
            "failures",
            "jobs",
            "artifacts",
        )
        return {t: int(self._one(f"SELECT COUNT(*) AS n FROM {t}")["n"]) for t in tables}

    # ---- artifacts -------------------------------------------------------------------------------------------------

    def put_artifact(self, owner: str, kind: str, content: str | bytes) -> Artifact:
        """Store what is too large to inline under `cake://artifact/{owner}/{kind}`; the latest content wins."""
        if not is_id(owner) or KIND.fullmatch(kind) is None:
            raise StoreError("args/invalid", f"not an artifact name: {owner}/{kind}")
        raw = content.encode() if isinstance(content, str) else content
        lines = (
            0 if isinstance(content, bytes) else content.count("\n") + (not content.endswith("\n") and content != "")
        )
        sha = self._put_object(raw)
        self._write(
            "store the artifact",
            "INSERT OR REPLACE INTO artifacts VALUES (?,?,?,?,?,?)",
            owner,
            kind,
            sha,
            len(raw),
            lines,
            time.time(),
        )
        return Artifact(uri=f"cake://artifact/{owner}/{kind}", kind=kind, bytes=len(raw), lines=lines)

    def artifact(self, owner: str, kind: str) -> bytes | None:
        """The bytes of an artifact; None when it is not here."""
        if not is_id(owner) or KIND.fullmatch(kind) is None:
            return None
        row = self._one("SELECT sha FROM artifacts WHERE owner = ? AND kind = ?", owner, kind)
        return None if row is None else self._get_object(row["sha"])

    def artifacts(self, owner: str) -> list[Artifact]:
        rows = self._all("SELECT kind, bytes, lines FROM artifacts WHERE owner = ? ORDER BY kind", owner)
        return [
            Artifact(uri=f"cake://artifact/{owner}/{r['kind']}", kind=r["kind"], bytes=r["bytes"], lines=r["lines"])
            for r in rows
        ]

    # ---- content-addressed files -----------------------------------------------------------------------------------

    def _put_object(self, raw: bytes) -> str:
        if len(raw) > MAX_OBJECT_BYTES:
            raise StoreError(
                "storage/limit", f"{len(raw)} bytes exceed the limit of {MAX_OBJECT_BYTES} bytes per object"
            )
        sha = hashlib.sha256(raw).hexdigest()
        if self.read_only:
            if sum(map(len, self._scratch.values())) + len(raw) > 4 * MAX_OBJECT_BYTES:
                self._scratch.clear()
            self._scratch[sha] = raw
            return sha
        path = self.root / "objects" / sha[:2] / sha
        with self._lock, _coded("write a file"):
            if path.exists():
                return sha
            if self._used + len(raw) > self.limit_bytes:
                raise StoreError(
                    "storage/limit",
                    f"the workspace holds {self._used} of at most {self.limit_bytes} bytes",
                    "start the server with another --workspace, or delete the old workspace directory",
                )
            if not path.parent.exists():
                path.parent.mkdir(mode=0o700, exist_ok=True)
                _sync(path.parent.parent)
            self._write_file(path, raw)
            self._used += len(raw)
        return sha

    def _write_file(self, path: Path, raw: bytes) -> None:
        """The bytes at `path`, whole or not at all, and on disk when this returns."""
        for last in (False, True):
            handle, name = tempfile.mkstemp(dir=self.root / "tmp")
            try:
                with os.fdopen(handle, "wb") as out:
                    fcntl.flock(out, fcntl.LOCK_EX)  # says to `_sweep` of another process that the writer lives
                    out.write(raw)
                    out.flush()
                    os.fsync(out.fileno())
                    os.replace(name, path)
                _sync(path.parent)
                return
            except FileNotFoundError:  # swept between its creation and the lock
                if last:
                    raise
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise

    def _sweep(self) -> None:
        """Remove unfinished files whose writers are gone."""
        for left in (self.root / "tmp").iterdir():
            with suppress(OSError), left.open("rb") as handle:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                left.unlink()

    def _get_object(self, sha: str) -> bytes:
        if sha in self._scratch:
            return self._scratch[sha]
        with _coded("read a file"):
            raw = (self.root / "objects" / sha[:2] / sha).read_bytes()
        if hashlib.sha256(raw).hexdigest() != sha:
            raise StoreError(
                "storage/damaged", f"object {sha[:16]} does not match its hash", "propose the program again"
            )
        return raw
