"""A content-addressed store of compiled kernels.

The key is the SHA-256 of everything that decides the output: source, architecture, options, compiler version and this
format's number. An entry is one file `KEY.cubin.cake`: a magic line, the SHA-256 of the body, the JSON body. It is
written to a temporary file and renamed, so a reader sees a whole entry or none; a damaged entry is dropped and compiled
anew. No fault of the store is an error: a full disk or a foreign directory only costs compile time, and is reported as
a note.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any

from cake_ir.fault import fault

FORMAT = 1
SUFFIX = ".cubin.cake"
DEFAULT_MAX_BYTES = 512 << 20
_MAGIC = b"cake-cubin 1\n"


def cache_key(source: str, arch: str, options: tuple[str, ...], compiler: str) -> str:
    """64 hex digits that name the compile."""
    parts = json.dumps([FORMAT, compiler, arch, list(options), source], ensure_ascii=True)
    return hashlib.sha256(parts.encode()).hexdigest()


def cubin_key(source: str, arch: str, options: tuple[str, ...]) -> str:
    """64 hex digits that name the kernel whatever compiler made it: what a route table knows a variant's cubin by."""
    return cache_key(source, arch, options, "any")


def user_directory() -> Path:
    """Where a user's compiled kernels are kept: `$CAKE_CACHE_DIR`, else `cake/cubins` in the user's cache directory. Raises CakeError
    `lowering/no-home` where neither is known."""
    named = os.environ.get("CAKE_CACHE_DIR")
    if named:
        return Path(named)
    try:
        own = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        raise fault(
            "lowering/no-home", "this user has no home directory, as in some containers; name a folder in CAKE_CACHE_DIR",
            contract="Compiled kernels are kept in a folder of the user's own.",
        ) from None  # fmt: skip
    return own / "cake" / "cubins"


class CubinCache:
    """Entries below `directory` (created with mode 0700). `None` disables the store.

    `notes` collects, in words, why the store was not used; it is never an exception.
    """

    def __init__(self, directory: str | os.PathLike[str] | None, *, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self.notes: list[str] = []
        self._max_bytes = max_bytes
        self._directory = self._open(Path(directory)) if directory is not None else None

    def get(self, key: str) -> dict[str, Any] | None:
        """The stored object, or None. A damaged entry is removed and noted."""
        if self._directory is None:
            return None
        path = self._directory / (key + SUFFIX)
        try:
            raw = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as exc:
            self._note(f"cannot read the cubin cache: {exc.strerror}")
            return None
        body = _body(raw)
        if body is None:
            self._note(f"cache entry {key[:12]} is damaged; compiled again")
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # recency, for eviction
        return body

    def cubin(self, key: str) -> bytes | None:
        """The machine code of an entry that a route table names, or None; an entry without any counts as damaged."""
        body = self.get(key)
        try:
            return base64.b64decode(body["cubin"], validate=True) or None if body else None
        except (KeyError, TypeError, ValueError):
            self._note(f"cache entry {key[:12]} holds no cubin; compiled again")
            return None

    def put(self, key: str, body: dict[str, Any]) -> bool:
        """Store `body`; False (and a note) if that was impossible."""
        if self._directory is None:
            return False
        import tempfile  # loads much, and the host path only reads

        data = json.dumps(body).encode()
        record = _MAGIC + hashlib.sha256(data).hexdigest().encode() + b"\n" + data
        temporary: str | None = None
        try:
            self._evict(len(record))
            handle, temporary = tempfile.mkstemp(dir=self._directory, prefix=".new-")
            with os.fdopen(handle, "wb") as out:
                out.write(record)
                out.flush()
                os.fsync(out.fileno())
            os.replace(temporary, self._directory / (key + SUFFIX))
        except OSError as exc:
            self._note(f"the compiled kernel was not cached: {exc.strerror}")
            if temporary is not None:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
            return False
        return True

    def _open(self, directory: Path) -> Path | None:
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            info = directory.stat()
            if info.st_uid != os.geteuid():
                self._note("the cubin cache belongs to another user and is not used")
                return None
            if stat.S_IMODE(info.st_mode) & 0o077:
                directory.chmod(0o700)
        except OSError as exc:
            self._note(f"no cubin cache: {exc.strerror}")
            return None
        return directory

    def _evict(self, incoming: int) -> None:
        """Drop the least recently used entries until `incoming` more bytes fit."""
        assert self._directory is not None
        entries: list[tuple[float, int, Path]] = []
        for path in self._directory.glob("*" + SUFFIX):
            with contextlib.suppress(FileNotFoundError):
                info = path.stat()
                entries.append((info.st_mtime, info.st_size, path))
        total = incoming + sum(size for _, size, _ in entries)
        for _, size, path in sorted(entries):
            if total <= self._max_bytes:
                return
            path.unlink(missing_ok=True)
            total -= size

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def _body(raw: bytes) -> dict[str, Any] | None:
    head = len(_MAGIC) + 65
    if not raw.startswith(_MAGIC) or len(raw) <= head:
        return None
    data = raw[head:]
    if raw[len(_MAGIC) : head - 1] != hashlib.sha256(data).hexdigest().encode():
        return None
    try:
        body = json.loads(data)
    except ValueError:
        return None
    return body if isinstance(body, dict) else None
