"""Transports: stdio, and streamable HTTP on loopback behind a bearer token. Ends children on every way out."""

from __future__ import annotations

import hmac
import os
import resource
import secrets
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import anyio
import structlog

from server.engine import Engine
from server.errors import BadArgument, EngineError
from server.mcp_server import CakeServer
from server.worker import kill_all

_log = structlog.get_logger("cake.serve")

MIN_TOKEN = 16
KEEP_ALIVE_S = 2.0
MAX_ADDRESS_SPACE = 8 * 2**30


def read_token(path: Path) -> str:
    """The bearer token of a file. Raises BadArgument when it is missing, short or readable by others."""
    try:
        mode = path.stat().st_mode
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise BadArgument(
            f"the token file {path} cannot be read: {exc}", "write a random token into it, mode 0600"
        ) from exc
    if mode & 0o077:
        raise BadArgument(f"the token file {path} can be read by others (mode {mode & 0o777:o})", f"chmod 600 {path}")
    if len(token) < MIN_TOKEN or not token.isascii() or any(c.isspace() for c in token):
        raise BadArgument(f"the token in {path} must be at least {MIN_TOKEN} ASCII characters without spaces")
    return token


def make_token(workspace: Path) -> Path:
    """A fresh token in the workspace, for `--http` without `--token-file`."""
    path = workspace / "http-token"
    try:
        if not path.exists():
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "w") as out:
                out.write(secrets.token_urlsafe(32) + "\n")
    except OSError as exc:
        path.unlink(missing_ok=True)
        raise EngineError(
            "storage/unavailable",
            f"no token could be written to {path}: {exc.strerror}",
            "give one with --token-file, or another --workspace",
        ) from exc
    return path


def warn_of_problems(engine: Engine) -> threading.Thread | None:
    """Say on stderr what the operator has to repair; the server runs without it. Returns the thread that looks."""
    if engine.store.problem is not None:
        _log.warning("workspace unusable: calls that store answer storage/*", problem=engine.store.problem.message)
    if engine.config.contracts_dir is not None:
        # On a thread: contracts need numpy, and the first answer must not wait for it.
        looking = threading.Thread(target=_report_contracts, args=(engine,), name="contracts", daemon=True)
        looking.start()
        return looking
    return None


def _report_contracts(engine: Engine) -> None:
    try:
        for line in engine.catalog.bad_contracts():
            _log.warning("contract file did not load", problem=line)
        own = [n for n, c in sorted(engine.catalog.contract_registry().items()) if c.origin != "built in"]
        _log.info("contracts loaded", own=", ".join(own) or "none", directory=str(engine.config.contracts_dir))
    except EngineError as exc:
        _log.warning("contracts did not load", problem=exc.message)


class BearerGuard:
    """ASGI guard in front of the SDK's app: one token, compared in constant time; nothing else is looked at before."""

    def __init__(self, app: Any, token: str) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = [v for k, v in scope["headers"] if k.lower() == b"authorization"]
        if len(given) == 1 and hmac.compare_digest(given[0], self._expected):
            await self._app(scope, receive, send)
            return
        body = b'{"error":"missing or wrong bearer token"}'
        headers = [
            (b"content-type", b"application/json"),
            (b"www-authenticate", b'Bearer realm="cake"'),
            (b"content-length", str(len(body)).encode()),
        ]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def keep_alive(seconds: float = KEEP_ALIVE_S) -> None:
    """Let a response that is still worked on send its headers and a comment line every few seconds.

    The SDK waits 15 s for both, and the default read timeout of common HTTP clients is 5 s. It has no setting for it:
    the class attribute of its event stream serves the older protocol era, a module constant the newer one.
    """
    import mcp.server._streamable_http_modern as modern
    from sse_starlette import EventSourceResponse

    EventSourceResponse.DEFAULT_PING_INTERVAL = seconds  # type: ignore[assignment]
    if hasattr(modern, "_SSE_PING_INTERVAL"):
        modern._SSE_PING_INTERVAL = seconds
    else:
        _log.warning("this SDK sends no early headers: give HTTP clients a read timeout of 60 s")


def http_app(cake: CakeServer, token: str, port: int) -> Any:
    """The guarded ASGI app. Host and Origin must name this very loopback port."""
    from mcp.server.transport_security import TransportSecuritySettings

    keep_alive()
    hosts = [f"127.0.0.1:{port}", f"localhost:{port}", f"[::1]:{port}"]
    security = TransportSecuritySettings(
        enable_dns_rebinding_protection=True, allowed_hosts=hosts, allowed_origins=[f"http://{h}" for h in hosts]
    )
    app = cake.build().streamable_http_app(transport_security=security, host="127.0.0.1")
    return BearerGuard(app, token)


def bound_memory() -> None:
    """A soft limit on this process: a program that makes an analysis run away ends in an answer, not in a dead server."""
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    wanted = MAX_ADDRESS_SPACE if hard == resource.RLIM_INFINITY else min(MAX_ADDRESS_SPACE, hard)
    resource.setrlimit(resource.RLIMIT_AS, (wanted, hard))


def leave(engine: Engine, cake: CakeServer, code: int) -> None:
    """End children, close the store, exit at once: a worker thread may sit in a call that cannot be interrupted."""
    cake.close()
    kill_all()
    engine.close()
    sys.stderr.flush()
    os._exit(code)


async def _on_signal(engine: Engine, cake: CakeServer) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as received:
        async for number in received:
            _log.info("stopping", signal=signal.Signals(number).name)
            leave(engine, cake, 128 + number if number == signal.SIGINT else 0)


def serve_stdio(engine: Engine) -> None:
    """Serve one client on stdin and stdout until it closes stdin."""
    bound_memory()
    cake = CakeServer(engine)

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_on_signal, engine, cake)
            await cake.build().run_stdio_async()
            tasks.cancel_scope.cancel()

    try:
        anyio.run(main)
    finally:
        leave(engine, cake, 0)


def serve_http(engine: Engine, port: int, token: str) -> None:
    """Serve on 127.0.0.1:port (0 picks a free port, named on stderr). Raises BadArgument when the port is taken."""
    import uvicorn

    bound_memory()
    cake = CakeServer(engine)
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError as exc:
        raise BadArgument(
            f"port {port} on 127.0.0.1 cannot be used: {exc.strerror}", "choose another --http PORT"
        ) from exc
    port = listener.getsockname()[1]

    class Server(uvicorn.Server):
        """uvicorn would install its own signal handlers and wait for open streams; ours end the children first."""

        def capture_signals(self) -> Any:
            import contextlib

            return contextlib.nullcontext()

    config = uvicorn.Config(http_app(cake, token, port), log_level="warning", access_log=False, log_config=None)

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_on_signal, engine, cake)
            print(f"cake: serving http://127.0.0.1:{port}/mcp", file=sys.stderr, flush=True)
            await Server(config).serve(sockets=[listener])
            tasks.cancel_scope.cancel()

    try:
        anyio.run(main)
    finally:
        leave(engine, cake, 0)
