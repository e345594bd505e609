"""The bundle's form: what is written can be read, and a file that is not exactly that is refused with its reason."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cake_ir.diagnostics import CakeError
from corpus import bundle, files

Files = dict[str, bytes]


def unpack(path: Path) -> Files:
    with zipfile.ZipFile(path) as z:
        return {i.filename: z.read(i) for i in z.infolist()}


def pack(path: Path, files: Files, kind: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", kind) as z:
        for name, data in files.items():
            z.writestr(name, data)
    return path


def code(path: Path) -> tuple[str, str]:
    with pytest.raises(CakeError) as caught:
        bundle.read(path)
    return caught.value.diagnostic.rule, caught.value.diagnostic.message


def test_what_is_written_is_read(real_bundle: Path) -> None:
    got = bundle.read(real_bundle)
    assert (
        got.manifest.complete
        and got.manifest.device["name"] == "Test H200"
        and got.manifest.compiler.startswith("NVRTC ")
    )
    check, timed = got.parts
    assert check.job is not None and check.result is not None and timed.result is not None
    assert check.result["passed"] and check.job.cubins == {} and len(got.cubins) == 1
    assert next(iter(got.cubins.values()))[:4] == b"\x7fELF"
    assert real_bundle.stat().st_size < 200_000


def test_a_bundle_names_no_very_machine(real_bundle: Path) -> None:
    whole = b"".join(unpack(real_bundle).values())
    assert b'"uuid"' not in whole and b"1234" not in json.dumps(bundle.read(real_bundle).manifest.device).encode()
    assert str(Path.home()).encode() not in whole


def test_the_same_evidence_makes_the_same_bytes(real_bundle: Path, tmp_path: Path) -> None:
    got = bundle.read(real_bundle)
    again = bundle.write(tmp_path / "again.zip", got.manifest, got.parts, got.cubins)
    assert again.read_bytes() == real_bundle.read_bytes() and list(tmp_path.iterdir()) == [again]


def drop(name: str) -> Callable[[Files], None]:
    return lambda f: f.pop(next(n for n in f if n.startswith(name)))  # type: ignore[func-returns-value]


def add(name: str, data: bytes = b"x") -> Callable[[Files], None]:
    return lambda f: f.__setitem__(name, data)


def flip(name: str) -> Callable[[Files], None]:
    def change(f: Files) -> None:
        key = next(n for n in f if n.startswith(name))
        f[key] = f[key][:-9] + bytes([f[key][-9] ^ 1]) + f[key][-8:]

    return change


def manifest(**change: Any) -> Callable[[Files], None]:
    return lambda f: f.__setitem__("manifest.json", json.dumps({**json.loads(f["manifest.json"]), **change}).encode())


@pytest.mark.parametrize(
    ("change", "rule", "text"),
    [
        (add("../../etc/cron.d/x"), "bundle/unsafe", "no file named '../../etc/cron.d/x'"),
        (add("/etc/passwd"), "bundle/unsafe", "'/etc/passwd'"),
        (add("results/..\\x.json"), "bundle/unsafe", "no file named"),
        (add("results/a/b.json"), "bundle/unsafe", "no file named"),
        (add("cubins/short.cubin"), "bundle/unsafe", "no file named"),
        (add("results/other.json", b"{}"), "bundle/hash", "in the bundle but not in the manifest"),
        (drop("results/"), "bundle/hash", "in the manifest but not in the bundle"),
        (drop("manifest"), "bundle/malformed", "no manifest.json"),
        (flip("cubins/"), "bundle/hash", "its SHA-256 differs"),
        (flip("jobs/"), "bundle/hash", "its SHA-256 differs"),
        (manifest(format=2), "bundle/malformed", "format"),
        (manifest(surprise=1), "bundle/malformed", "surprise"),
        (manifest(date="yesterday"), "bundle/malformed", "date"),
        (manifest(command="\x1b[2Jcake"), "bundle/unsafe", "control characters"),
        (manifest(packages={"a\u202e": "1"}), "bundle/unsafe", "control characters"),
        (manifest(cake="\ud800"), "bundle/unsafe", "control characters"),
        (manifest(command="x" * 500), "bundle/malformed", "command"),
        (add("manifest.json", b'{"format": NaN}'), "bundle/malformed", "no JSON number"),
        (add("manifest.json", b"[" * 100_000), "bundle/malformed", "no JSON"),
        (add("manifest.json", b'{"a":' * 60 + b"1" + b"}" * 60), "bundle/malformed", "nested"),
    ],
)
def test_a_changed_file_is_refused(
    real_bundle: Path, tmp_path: Path, change: Callable[[Files], None], rule: str, text: str
) -> None:
    files = unpack(real_bundle)
    change(files)
    got, message = code(pack(tmp_path / "x.zip", files))
    assert got == rule and text in message


def test_a_cut_file_or_none_is_refused(real_bundle: Path, tmp_path: Path) -> None:
    raw = real_bundle.read_bytes()
    for size in (0, 100, len(raw) // 2, len(raw) - 1):
        (tmp_path / "cut.zip").write_bytes(raw[:size])
        assert code(tmp_path / "cut.zip")[0] == "bundle/unreadable"
    assert code(tmp_path / "none.zip") == (
        "bundle/unreadable",
        f"{tmp_path}/none.zip cannot be read: No such file or directory",
    )


def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "MAX_FILE", 1 << 20)
    pack(tmp_path / "bomb.zip", {"results/a.json": bytes(2 << 20)})
    assert (tmp_path / "bomb.zip").stat().st_size < 10_000
    assert code(tmp_path / "bomb.zip") == ("bundle/too-large", "results/a.json unpacks to 2097152 bytes; at most 1 MiB")


def test_a_header_that_lies_about_its_size_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "MAX_TOTAL", 1 << 20)
    pack(tmp_path / "many.zip", {f"results/{i}.json": bytes(300 << 10) for i in range(4)})
    rule, text = code(tmp_path / "many.zip")
    assert rule == "bundle/too-large" and "results/3.json unpacks to more" in text


def test_too_many_files_and_a_huge_file_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack(tmp_path / "many.zip", {f"results/{i}.json": b"{}" for i in range(bundle.MAX_FILES + 1)})
    assert code(tmp_path / "many.zip")[0] == "bundle/too-large"
    with (tmp_path / "huge.zip").open("wb") as out:
        out.truncate(bundle.MAX_BUNDLE + 1)
    assert code(tmp_path / "huge.zip")[0] == "bundle/too-large"
    assert code(Path("/dev/zero"))[0] == "bundle/too-large"


def test_doubled_and_encrypted_entries_are_refused(tmp_path: Path) -> None:
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as z, pytest.warns(UserWarning):
        z.writestr("manifest.json", b"{}")
        z.writestr("manifest.json", b"{}")
    (tmp_path / "twice.zip").write_bytes(raw.getvalue())
    assert code(tmp_path / "twice.zip") == ("bundle/unsafe", "the bundle holds manifest.json twice")
    pack(tmp_path / "e.zip", {"manifest.json": b"{}"})
    data = bytearray((tmp_path / "e.zip").read_bytes())
    for mark, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(mark) + at] |= 1
    (tmp_path / "e.zip").write_bytes(bytes(data))
    assert code(tmp_path / "e.zip") == ("bundle/unsafe", "manifest.json is encrypted")


def test_a_failed_write_leaves_the_old_bundle(
    real_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    got = bundle.read(real_bundle)
    path = tmp_path / "b.zip"
    path.write_bytes(b"old")

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        bundle.write(path, got.manifest, got.parts, got.cubins)
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]
