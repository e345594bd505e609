"""The compiler child, its limits and messages, and the cubin cache."""

from __future__ import annotations

import errno
import os
import subprocess
import time
from pathlib import Path

import anyio
import pytest

from cake_ir.diagnostics import CakeError
from lowering import cache as cache_module
from lowering import compile as compiler
from lowering import nvrtc_child
from lowering.cache import CubinCache, cache_key
from lowering.compile import compile_cuda, compile_cuda_async
from tests.lowering.toolchain_probes import SMALL, slow


def rule(fault: pytest.ExceptionInfo[CakeError]) -> str:
    return fault.value.diagnostic.rule


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
def test_compiles_to_elf_and_ptx(arch: str) -> None:
    made = compile_cuda(SMALL, arch)
    assert made.cubin[:4] == b"\x7fELF" and not made.cached
    assert f".target {arch}" in made.ptx and "ptxas info" in made.log and "\0" not in made.log
    assert made.nvrtc_version.count(".") == 1 and made.warnings == ()


def test_cubins_do_not_depend_on_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compile_cuda(SMALL, "sm_90a")
    monkeypatch.chdir(tmp_path)
    assert compile_cuda(SMALL, "sm_90a").sha256 == first.sha256
    assert str(tmp_path).encode() not in first.cubin


@pytest.mark.parametrize(
    "line",
    [
        '#include "/etc/passwd"',
        "  #  include <x>",
        "/**/#include <x>",
        "%:include <x>",
        "??=include <x>",
        "#define A 1",
        "int x; #pragma unroll",
        '#line 3 "../x.cake"',
        '#line 3 "x.cu"',
        "#in\\\nclude <x>",
        '_Pragma("GCC dependency \\"/etc/passwd\\"")',
        'asm("\\x23include");',
        'asm("\\043include");',
        "\f#include <x>",
        "\0",
        "#if __has_include(</etc/passwd>)",
    ],
)
def test_directives_never_reach_nvrtc(line: str) -> None:
    assert nvrtc_child.refuse_reason(SMALL + line + "\n") is not None
    with pytest.raises(CakeError) as fault:
        compile_cuda(SMALL + line + "\n", "sm_80")
    assert rule(fault) == "lowering/source-refused"


def test_the_child_refuses_by_itself(tmp_path: Path) -> None:
    """The parent's check is a courtesy; the child must not rely on it."""
    secret = tmp_path / "secret"
    secret.write_text("TOPSECRET is not C\n")
    reply = nvrtc_child.answer({"source": f'#include "{secret}"\n', "arch": "sm_80", "options": []})
    assert reply["kind"] == "refused" and "TOPSECRET" not in str(reply)
    for option in ("-I/etc", "--pre-include=/etc/passwd", "--define-macro=A=1", "-time=/tmp/x", "-pch"):
        reply = nvrtc_child.answer({"source": SMALL, "arch": "sm_80", "options": [option]})
        assert reply["kind"] == "refused", option
    assert nvrtc_child.answer({"source": SMALL, "arch": "sm_80 -I/etc", "options": []})["kind"] == "refused"


def test_allowed_directives_pass() -> None:
    source = SMALL + '#line 12 "a-b_c.1.cake"\n#pragma unroll\n  #pragma unroll 4\n'
    assert nvrtc_child.refuse_reason(source) is None


def test_nvrtc_error_names_the_cake_line() -> None:
    with pytest.raises(CakeError) as fault:
        compile_cuda(SMALL.replace("x[i] * 2.0f", "zork + ;"), "sm_80")
    found = fault.value.diagnostic
    assert found.rule == "lowering/compile-failed" and found.span.line == 9
    assert "zork" in found.message and [r.span.line for r in found.related] == [9]


def test_ptxas_error_names_the_cake_line() -> None:
    """ptxas knows PTX lines only; the way back leads through .loc, also out of an inlined helper."""
    helper = '__device__ __forceinline__ void fence() {\n  asm volatile("wgmma.fence.sync.aligned;");\n}\n'
    with pytest.raises(CakeError) as fault:
        compile_cuda(helper + SMALL.replace("y[i] =", "fence(), y[i] ="), "sm_80")
    found = fault.value.diagnostic
    assert found.span.line == 9 and "wgmma.fence" in found.message


def test_error_outside_any_cake_line_says_so() -> None:
    with pytest.raises(CakeError) as fault:
        compile_cuda("int zork(;\n" + SMALL, "sm_80")
    assert "line 1 of the generated CUDA" in fault.value.diagnostic.message


def test_serialised_wgmma_is_reported() -> None:
    log = "ptxas info    : (C7511) Potential Performance Loss: wgmma serialized in the function 'k' in line 3\n"
    ptx = '{\n.loc 1 42 3\nx;\n}\n.file 1 "/k.cake"\n'
    (found,) = compiler._log_warnings(log, ptx)
    assert (found.rule, found.severity, found.span.line) == ("lowering/wgmma-serialized", "warning", 42)


def test_timeout_kills_the_child() -> None:
    started = time.monotonic()
    with pytest.raises(CakeError) as fault:
        compile_cuda(slow(4000), "sm_80", timeout_s=1.0)
    assert rule(fault) == "lowering/compile-timeout"
    assert time.monotonic() - started < 60


def test_cancellation_kills_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[anyio.abc.Process] = []
    original = anyio.open_process

    async def spy(*args: object, **kwargs: object) -> anyio.abc.Process:
        started.append(await original(*args, **kwargs))  # type: ignore[arg-type]
        return started[-1]

    monkeypatch.setattr(anyio, "open_process", spy)

    async def main() -> bool:
        with anyio.move_on_after(0.7) as scope:
            await compile_cuda_async(slow(4000), "sm_80")
        return scope.cancelled_caught

    assert anyio.run(main)
    assert started[0].returncode == -9
    with pytest.raises(ProcessLookupError):
        os.kill(started[0].pid, 0)


def test_async_compiles_and_times_out(tmp_path: Path) -> None:
    async def main() -> None:
        made = await compile_cuda_async(SMALL, "sm_90a", cache_dir=tmp_path)
        again = await compile_cuda_async(SMALL, "sm_90a", cache_dir=tmp_path)
        assert (made.cached, again.cached, again.cubin) == (False, True, made.cubin)
        with pytest.raises(CakeError) as fault:
            await compile_cuda_async(slow(4000), "sm_80", timeout_s=0.8)
        assert rule(fault) == "lowering/compile-timeout"

    anyio.run(main)


def test_memory_limit_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc_child, "DEFAULT_MEMORY", 185 << 20)
    with pytest.raises(CakeError) as fault:
        compile_cuda(slow(60), "sm_80")
    assert rule(fault) in ("lowering/compiler-killed", "lowering/compiler-missing")


@pytest.mark.parametrize(("signal", "text"), [(9, "SIGKILL (out of memory?)"), (11, "SIGSEGV")])
def test_killed_child_is_an_answer(signal: int, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    script = f"import os; os.kill(os.getpid(), {signal})"
    monkeypatch.setattr(compiler, "child_command", lambda: [os.sys.executable, "-c", script])  # type: ignore[attr-defined]
    with pytest.raises(CakeError) as fault:
        compile_cuda(SMALL, "sm_80")
    assert rule(fault) == "lowering/compiler-killed" and text in fault.value.diagnostic.message


def test_missing_compiler_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cuda").mkdir()
    (tmp_path / "cuda" / "__init__.py").write_text("raise ImportError('absent')\n")
    env = {**compiler.child_environment(), "PYTHONPATH": str(tmp_path)}
    monkeypatch.setattr(compiler, "child_environment", lambda: env)
    with pytest.raises(CakeError) as fault:
        compile_cuda(SMALL, "sm_80")
    assert rule(fault) == "lowering/compiler-missing"
    assert "pip install 'cake-mcp[cuda]'" in fault.value.diagnostic.message


def test_the_child_gets_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAKE_TOKEN", "s3cret")
    assert "s3cret" not in str(compiler.child_environment())


def test_log_is_printable_and_bounded() -> None:
    cleaned = compiler.clean_log("a\x1b[31mb\r\n" + "x" * (1 << 17))
    assert "\x1b" not in cleaned and "\r" not in cleaned and len(cleaned) < (1 << 16) + 100


# ---- cache ---------------------------------------------------------------------------------------------------------


def test_cache_hits_and_is_private(tmp_path: Path) -> None:
    store = tmp_path / "a" / "cubins"
    first = compile_cuda(SMALL, "sm_80", cache_dir=store)
    second = compile_cuda(SMALL, "sm_80", cache_dir=store)
    assert (first.cached, second.cached) == (False, True)
    assert (first.cubin, first.ptx, first.log) == (second.cubin, second.ptx, second.log)
    assert store.stat().st_mode & 0o777 == 0o700
    assert [p.stat().st_mode & 0o077 for p in store.iterdir()] == [0]
    assert not compile_cuda(SMALL, "sm_89", cache_dir=store).cached


def test_key_covers_everything() -> None:
    base = ("text", "sm_80", ("-a", "-b"), "nvrtc 1")
    others = [("text2", *base[1:]), ("text", "sm_89", *base[2:]), ("text", "sm_80", ("-a -b",), "nvrtc 1"),
              (*base[:3], "nvrtc 2")]  # fmt: skip
    keys = {cache_key(*base), *(cache_key(*o) for o in others)}
    assert len(keys) == 5 and all(len(k) == 64 for k in keys)


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "other"])
def test_damaged_entry_is_compiled_again(damage: str, tmp_path: Path) -> None:
    good = compile_cuda(SMALL, "sm_80", cache_dir=tmp_path)
    (entry,) = tmp_path.iterdir()
    raw = bytearray(entry.read_bytes())
    raw[-100] ^= 1
    entry.write_bytes({"flip": bytes(raw), "cut": bytes(raw[:200]), "empty": b"", "other": b"hello"}[damage])
    again = compile_cuda(SMALL, "sm_80", cache_dir=tmp_path)
    assert not again.cached and again.cubin == good.cubin and "damaged" in again.notes[0]
    assert compile_cuda(SMALL, "sm_80", cache_dir=tmp_path).cached


def test_full_disk_costs_only_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(cache_module.os, "fsync", full)
    made = compile_cuda(SMALL, "sm_80", cache_dir=tmp_path)
    assert made.cubin[:4] == b"\x7fELF" and "No space left" in made.notes[0]
    assert list(tmp_path.iterdir()) == []


def test_unusable_directory_costs_only_the_cache(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("x")
    made = compile_cuda(SMALL, "sm_80", cache_dir=blocked)
    assert not made.cached and "no cubin cache" in made.notes[0]


def test_least_recently_used_entries_go_first(tmp_path: Path) -> None:
    store = CubinCache(tmp_path, max_bytes=2600)
    for number, key in enumerate("abc"):
        store.put(key * 64, {"data": key * 1000})
        os.utime(tmp_path / (key * 64 + cache_module.SUFFIX), (number, number))
    assert store.get("a" * 64) is None and store.get("c" * 64) == {"data": "c" * 1000}
    assert store.get("b" * 64) is not None
    assert store.notes == []


def test_child_runs_as_a_module_too() -> None:
    done = subprocess.run(
        [os.sys.executable, "-m", "lowering.nvrtc_child"],  # type: ignore[attr-defined]
        input=b'{"version": true}', capture_output=True, check=True, cwd=Path(compiler.__file__).parent.parent,
    )  # fmt: skip
    assert b'"nvrtc": "' in done.stdout
