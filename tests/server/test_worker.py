"""Worker processes: killed, hung, cancelled or orphaned, each ends in a coded answer and no process stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from server import worker
from server.engine import Engine
from server.errors import Cancelled, EngineError, Missing
from server.programs import Ref
from server.worker import Control, WorkerDied, gpu_lock, run_worker
from tests.server.conftest import KMEANS, ROOT

JOB: dict[str, Any] = {
    "kind": "check", "text": KMEANS, "bindings": {}, "target": "sm_90a", "kernel": "kmeans_assign",
    "contract": "kmeans_assign",
    "shapes": [{"B": 1, "N": 4096 + i, "C": 1024, "D": 128} for i in range(50)],
}  # fmt: skip


def live_pid(seconds: float = 10) -> int:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if worker._live:
            return next(iter(worker._live))
        time.sleep(0.005)
    raise AssertionError("no worker started")


def gone(pid: int, seconds: float = 5) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] in ("Z", "X"):
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


def later(action: Any) -> threading.Thread:
    thread = threading.Thread(target=lambda: action(live_pid()))
    thread.start()
    return thread


def test_a_killed_worker_is_coded_and_named() -> None:
    thread = later(lambda pid: os.kill(pid, signal.SIGKILL))
    with pytest.raises(WorkerDied) as caught:
        run_worker("server.cpu_main", JOB, timeout_s=60, control=Control())
    thread.join()
    assert caught.value.code == "worker/killed" and "SIGKILL" in caught.value.message and "intact" in caught.value.next
    assert not worker._live


def test_a_hung_worker_is_ended_at_its_limit() -> None:
    seen: list[int] = []

    def stop(pid: int) -> None:
        seen.append(pid)
        os.kill(pid, signal.SIGSTOP)

    thread = later(stop)
    begin = time.monotonic()
    with pytest.raises(WorkerDied) as caught:
        run_worker("server.cpu_main", JOB, timeout_s=1.5, control=Control())
    thread.join()
    assert caught.value.code == "worker/timeout" and time.monotonic() - begin < 30
    assert gone(seen[0])


def test_cancelling_ends_the_worker_and_its_descendants() -> None:
    control = Control()
    seen: list[int] = []

    def cancel(pid: int) -> None:
        seen.append(pid)
        control.cancel.set()

    thread = later(cancel)
    begin = time.monotonic()
    with pytest.raises(Cancelled):
        run_worker("server.cpu_main", JOB, timeout_s=60, control=control)
    thread.join()
    assert time.monotonic() - begin < 30 and gone(seen[0])


def test_a_fault_in_the_worker_is_coded_without_a_trace() -> None:
    with pytest.raises(EngineError) as caught:
        run_worker("server.cpu_main", {"kind": "nonsense"}, timeout_s=60, control=Control())
    assert caught.value.code == "internal/unexpected" and "Traceback" not in caught.value.message


def test_only_known_modules_are_run() -> None:
    with pytest.raises(WorkerDied) as caught:
        run_worker("os", {}, timeout_s=20, control=Control())
    assert caught.value.code == "worker/crashed"


def test_kill_tree_reaches_a_grandchild_in_its_own_session() -> None:
    script = """
        import subprocess, sys, time
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
        print(child.pid, flush=True)
        time.sleep(60)
    """
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, start_new_session=True
    )
    assert parent.stdout
    grandchild = int(parent.stdout.readline())
    worker.kill_tree(parent.pid)
    parent.wait()
    parent.stdout.close()
    assert gone(grandchild)


def test_a_worker_ends_with_its_parent() -> None:
    script = """
        import os, subprocess, sys, time
        argv = [sys.executable, "-m", "server.guard", "server.cpu_main", str(os.getpid())]
        child = subprocess.Popen(argv, stdin=subprocess.PIPE)
        time.sleep(0.7)
        print(child.pid, flush=True)
        time.sleep(60)
    """
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, cwd=ROOT)
    assert parent.stdout
    child = int(parent.stdout.readline())
    assert Path("/proc", str(child)).exists()
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert gone(child)


def test_one_job_at_a_time_per_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker.tempfile, "gettempdir", lambda: str(tmp_path))
    with gpu_lock(0, Control()):
        with gpu_lock(1, Control()):
            pass
        with pytest.raises(Missing) as caught, gpu_lock(0, Control(), wait_s=0.3):
            pass
        assert caught.value.code == "gpu/busy"
        cancelled = Control()
        cancelled.cancel.set()
        with pytest.raises(Cancelled), gpu_lock(0, cancelled):
            pass
    with gpu_lock(0, Control(), wait_s=0.3):
        pass


HOLDER = """
    import sys, time
    from server import worker
    from server.worker import Control, gpu_lock
    worker.tempfile.gettempdir = lambda: sys.argv[1]
    with gpu_lock(0, Control()) as lock:
        if len(sys.argv) > 2:
            lock.set_problem(sys.argv[2])
        print("held", flush=True)
        time.sleep(60)
"""


def holder(folder: Path, *more: str) -> subprocess.Popen[bytes]:
    """Another process that holds the lock of GPU 0."""
    argv = [sys.executable, "-c", textwrap.dedent(HOLDER), str(folder), *more]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=ROOT)
    assert process.stdout and process.stdout.readline() == b"held\n"
    return process


def test_the_lock_of_a_killed_process_is_free_and_its_last_word_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker.tempfile, "gettempdir", lambda: str(tmp_path))
    assert worker.gpu_state(0) == {"busy": False, "problem": ""}
    with holder(tmp_path, "GPU 0 does not answer: x") as other:
        with pytest.raises(Missing) as caught, gpu_lock(0, Control(), wait_s=0.3):
            pass
        assert caught.value.code == "gpu/busy"
        state = worker.gpu_state(0)
        assert state["busy"] and state["pid"] == other.pid
        other.kill()
        other.wait()
        assert other.stdout
        with gpu_lock(0, Control(), wait_s=5) as lock:
            assert lock.problem == "GPU 0 does not answer: x"
            assert worker.gpu_state(0)["pid"] == os.getpid()
            lock.set_problem("")
    state = worker.gpu_state(0)
    assert not state["busy"] and state["problem"] == ""


def test_a_torn_lock_file_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker.tempfile, "gettempdir", lambda: str(tmp_path))
    with gpu_lock(0, Control()):
        pass
    path = next(tmp_path.glob("*/gpu0.lock"))
    path.write_text('{"pid": 1, "prob')
    with gpu_lock(0, Control()) as lock:
        assert lock.problem == ""


def test_two_processes_take_turns(tmp_path: Path) -> None:
    script = """
        import sys, time
        from pathlib import Path
        from server import worker
        from server.worker import Control, gpu_lock
        worker.tempfile.gettempdir = lambda: sys.argv[1]
        inside = Path(sys.argv[1], "inside")
        for _ in range(5):
            with gpu_lock(0, Control()):
                inside.touch(exist_ok=False)
                time.sleep(0.01)
                inside.unlink()
        print("fair")
    """
    argv = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)]
    both = [subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=ROOT, text=True) for _ in range(2)]
    assert [p.communicate(timeout=30)[0] for p in both] == ["fair\n", "fair\n"]


def test_where_a_job_stood_comes_with_its_error() -> None:
    fault = worker._as_error({"code": "worker/hung", "message": "m", "next": "n", "at": {"shape": {"M": 1}}})
    assert isinstance(fault, worker.JobFault) and fault.at == {"shape": {"M": 1}} and fault.code == "worker/hung"
    plain = worker._as_error({"code": "job/bad", "message": "m"})
    assert not isinstance(plain, worker.JobFault) and plain.code == "job/bad"
    assert worker._as_error("nonsense").code == "worker/crashed"


def test_a_process_that_cannot_end_does_not_hang_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "EXIT_S", 0.1)
    stuck = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    begin = time.monotonic()
    worker._bury(stuck)  # as if it sat in a driver: it was not killed here
    assert time.monotonic() - begin < 10
    stuck.kill()
    assert gone(stuck.pid)


def test_a_lower_limit_of_the_shell_does_not_stop_the_worker() -> None:
    script = """
        import resource
        from server.worker import Control, run_worker
        resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        job = {"kind": "build", "text": TEXT, "bindings": {}, "target": "sm_90a", "kernel": "kmeans_assign",
               "emit_only": True}
        print(len(run_worker("server.cpu_main", job, timeout_s=60, control=Control())["cuda"]) > 1000)
    """
    code = f"TEXT = {KMEANS!r}\n" + textwrap.dedent(script)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=90)
    assert done.stdout.strip() == "True", done.stderr


def test_a_worker_that_dies_on_an_accepted_program_is_kept_under_an_id(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = later(lambda pid: os.kill(pid, signal.SIGKILL))
    with pytest.raises(EngineError) as caught:
        engine.evaluate.build(Ref(text=KMEANS))
    thread.join()
    got = caught.value.result()
    assert got.code == "worker/killed" and got.ids["failure_id"] in got.next
    kept = engine.store.failure(got.ids["failure_id"])
    assert kept is not None and kept["record"]["variant_id"] == got.ids["variant_id"]
