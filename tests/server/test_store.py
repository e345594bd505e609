"""The evidence store: private, content addressed, atomic; a full disk is an answer and loses nothing."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from server.store import MAX_OBJECT_BYTES, Store, StoreError, digest, is_id

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def store(workspace: Path) -> Store:
    return Store(workspace)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_directory_is_private(store: Store) -> None:
    store.put_source("text")
    assert mode(store.root) == 0o700 and mode(store.root / "cake.db") == 0o600
    files = [p for p in (store.root / "objects").rglob("*") if p.is_file()]
    assert files and all(mode(p) == 0o600 for p in files)


def test_ids_are_well_formed_and_stable() -> None:
    a = digest("src", "x", {"b": 1, "a": 2})
    assert is_id(a, "src") and a == digest("src", "x", {"a": 2, "b": 1})
    assert not is_id("src_12") and not is_id("../etc/passwd") and not is_id("src_" + "g" * 32) and not is_id(a, "ir")
    assert not is_id(a + "\n")


def test_sources_programs_and_variants_come_back(store: Store) -> None:
    ir = digest("ir", "p")
    first, second = store.put_source("one"), store.put_source("two ")
    store.put_program(ir, first, "p")
    store.put_program(ir, second, "p")
    assert store.source_of(ir) == (second, "two ") and store.source_of(first) == (first, "one")
    assert store.source_of(digest("ir", "q")) is None
    variant = digest("v", "x")
    store.put_variant(variant, ir, {"BN": 64, "F": True}, "sm_90a", "k")
    assert store.variant(variant)["bindings"] == {"BN": 64, "F": True}  # type: ignore[index]


def test_everything_survives_a_restart(store: Store) -> None:
    source = store.put_source("text")
    build = digest("b", 1)
    art = store.put_artifact(build, "cuda", "line 1\nline 2\n")
    store.put_job(digest("job", 1), "bench", "running", {"a": 1})
    store.put_measurement(digest("v", 1), "gemm", {"M": 1}, "H200", "bench", "passed", {"t": 2.5})
    assert store.put_failure(digest("f", 1), "verifier", "hang", {}) == 1
    store.close()
    again = Store(store.root)
    assert again.source_of(source) == (source, "text")
    assert again.artifact(build, "cuda") == b"line 1\nline 2\n" and art.lines == 2
    assert again.job(digest("job", 1))["status"] == "running"  # type: ignore[index]
    assert again.measurements(digest("v", 1), "gemm")[0]["record"] == {"t": 2.5}
    assert again.measurements(digest("v", 1), "gemm", "profile") == []
    assert again.put_failure(digest("f", 1), "verifier", "hang", {}) == 2


@pytest.mark.parametrize(
    ("owner", "kind"), [("../../x", "cuda"), ("b_" + "0" * 32, "../x"), ("b_1", "cuda"), ("b_" + "0" * 32, "A")]
)
def test_artifact_names_cannot_be_paths(store: Store, owner: str, kind: str) -> None:
    assert store.artifact(owner, kind) is None
    with pytest.raises(StoreError) as caught:
        store.put_artifact(owner, kind, "x")
    assert caught.value.code == "args/invalid"


def test_limits_are_coded(workspace: Path) -> None:
    small = Store(workspace, limit_bytes=1_000)
    small.put_artifact("b_" + "0" * 32, "cuda", "x" * 600)
    with pytest.raises(StoreError) as caught:
        small.put_artifact("b_" + "1" * 32, "cuda", "y" * 600)
    assert caught.value.code == "storage/limit"
    with pytest.raises(StoreError) as caught:
        small.put_artifact("b_" + "2" * 32, "cuda", b"z" * (MAX_OBJECT_BYTES + 1))
    assert caught.value.code == "storage/limit"
    assert small.artifact("b_" + "0" * 32, "cuda") == b"x" * 600


def test_a_full_database_is_coded_and_keeps_what_it_has(store: Store) -> None:
    source = store.put_source("before")
    pages = store._db.execute("PRAGMA page_count").fetchone()[0]
    store._db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreError) as caught:
        for i in range(1_000):
            store.put_job(digest("job", i), "bench", "running", {"pad": "x" * 2_000})
    assert caught.value.code == "storage/full" and "intact" in caught.value.next
    store._db.execute("PRAGMA max_page_count = 1000000")
    assert store.source_of(source) == (source, "before")
    store.put_job(digest("job", "after"), "bench", "running", {})


def test_a_full_disk_is_coded_and_keeps_what_it_has(workspace: Path) -> None:
    """A file-size limit makes the kernel refuse the write in the middle, as a full disk does."""
    script = """
        import resource, signal, sys
        from pathlib import Path
        from server.store import Store, StoreError
        store = Store(Path(sys.argv[1]))
        kept = store.put_artifact("b_" + "0" * 32, "cuda", "kept")
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
        try:
            store.put_artifact("b_" + "1" * 32, "cuda", "y" * 1_000_000)
        except StoreError as exc:
            print(exc.code)
        print(store.artifact("b_" + "0" * 32, "cuda"), store.artifact("b_" + "1" * 32, "cuda"))
        print(sorted(p.name for p in (Path(sys.argv[1]) / "tmp").iterdir()))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(workspace)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
    )
    assert done.stdout.split("\n")[:3] == ["storage/full", "b'kept' None", "[]"], done.stderr


def test_a_damaged_object_is_found(store: Store) -> None:
    source = store.put_source("text")
    victim = next(p for p in (store.root / "objects").rglob("*") if p.is_file())
    victim.write_bytes(b"other")
    with pytest.raises(StoreError) as caught:
        store.source_of(source)
    assert caught.value.code == "storage/damaged"


def test_an_unusable_workspace_is_coded(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(StoreError) as caught:
        Store(tmp_path / "file")
    assert caught.value.code == "storage/unavailable"
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "cake.db").write_bytes(b"this is not a database" * 100)
    with pytest.raises(StoreError) as caught:
        Store(broken)
    assert caught.value.code == "storage/unavailable"


def test_read_only_reads_the_workspace_and_writes_nothing(store: Store) -> None:
    source = store.put_source("text")
    store.close()
    before = {p: p.stat().st_mtime_ns for p in store.root.rglob("*")}
    looking = Store(store.root, read_only=True)
    assert looking.source_of(source) == (source, "text")
    new = looking.put_source("new")
    assert looking.source_of(new) == (new, "new")
    looking.put_artifact("v_" + "0" * 32, "ledger", "rows")
    looking.close()
    assert {p: p.stat().st_mtime_ns for p in store.root.rglob("*")} == before


def test_threads_may_share_a_store(store: Store) -> None:
    failures: list[Exception] = []

    def work(n: int) -> None:
        try:
            for i in range(20):
                store.put_source(f"text {i}")
                store.put_failure(digest("f", i), "verifier", "hang", {"n": n})
        except Exception as exc:
            failures.append(exc)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures
    assert all(f["count"] == 6 for f in store.failures()) and len(store.failures()) == 20


def test_two_processes_may_share_a_workspace(store: Store) -> None:
    other = Store(store.root)
    a = store.put_source("a")
    assert other.source_of(a) == (a, "a")
    assert sqlite3.connect(store.root / "cake.db").execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    assert os.path.exists(store.root / "cake.db-wal")
