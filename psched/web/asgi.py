"""Lets an ASGI server call the pages: threads make them, and none waits for an event to tell."""

import asyncio
import io
import signal
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from typing import Any

from psched.web.request import KEEP_OPEN, LONGEST_BODY, Kept

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_LONGEST = 300.0  # seconds after which a browser has to connect again
_STEP = 0.5  # seconds between two looks whether the server ends
_MOST_UNREAD = 20  # the most events that wait for their reader

# Of all pages of this process. The other threads of the application must not wait for the store.
_threads = ThreadPoolExecutor(8, "psched.web")


class _Stream:
    """A connection on which an answer goes on, for threads outside of the event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting = asyncio.Queue[bytes]()
        self._is_open = True
        self.follow: Callable[[Kept], None] | None = None

    def keep_open(self, follow: Callable[[Kept], None]) -> None:
        """Let the answer go on."""
        self.follow = follow

    def is_open(self) -> bool:
        """Whether the client is still connected."""
        return self._is_open

    def send(self, data: bytes) -> None:
        """Send some bytes soon, or raise an `OSError` if nobody reads them."""
        if not self._is_open or self._waiting.qsize() > _MOST_UNREAD:
            raise ConnectionError("the client has hung up, or does not read")
        try:
            self._loop.call_soon_threadsafe(self._waiting.put_nowait, data)
        except RuntimeError:  # the loop has ended
            raise ConnectionError("the server ends") from None

    def close(self) -> None:
        """End the answer."""
        self._is_open = False

    async def go_on(self, receive: Receive, send: Send) -> None:
        """Send what there is, until the answer or the client or the server ends."""
        gone = asyncio.ensure_future(receive())
        until = self._loop.time() + _LONGEST
        try:
            while self._is_open and not gone.done() and self._loop.time() < until:
                if _is_ending():
                    break
                with suppress(TimeoutError):
                    data = await asyncio.wait_for(self._waiting.get(), _STEP)
                    await send({"type": "http.response.body", "body": data, "more_body": True})
            if not gone.done():
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._is_open = False
            gone.cancel()


class AsgiApplication:
    """A WSGI application as an ASGI application."""

    def __init__(self, application: Callable[..., Iterable[bytes]]) -> None:
        self._application = application

    # Uvicorn recognises an application of this kind by its method.
    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":  # nothing is begun or ended with the server
            raise NotImplementedError(f"psched's pages serve http, not {scope['type']}")
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message.get("body", b"")
            if not message.get("more_body") or len(body) > LONGEST_BODY:
                break
        else:
            return  # the client has hung up
        stream, begun = _Stream(), list[MutableMapping[str, Any]]()

        def start_response(status: str, headers: Iterable[tuple[str, str]]) -> None:
            coded = [(name.lower().encode(), each.encode("latin-1")) for name, each in headers]
            begun.append(
                {"type": "http.response.start", "status": int(status[:3]), "headers": coded}
            )

        environ = {**_environ(scope, body), KEEP_OPEN: stream.keep_open, "asgi.scope": scope}
        # What the application around it has set for this request, `access` finds, too.
        context = copy_context()
        content = await asyncio.get_running_loop().run_in_executor(
            _threads,
            lambda: context.run(lambda: b"".join(self._application(environ, start_response))),
        )
        follow = stream.follow
        await send(begun[0])
        more = follow is not None
        await send({"type": "http.response.body", "body": content, "more_body": more})
        if follow is not None:
            follow(stream)
            await stream.go_on(receive, send)


def _environ(scope: Mapping[str, Any], body: bytes) -> Mapping[str, Any]:
    """The request as PEP 3333 defines it."""
    root = str(scope.get("root_path", ""))
    path = str(scope["path"]).removeprefix(root)
    client, server = scope.get("client") or ("", 0), scope.get("server") or ("", 0)
    return {
        "REQUEST_METHOD": scope["method"],
        "SCRIPT_NAME": _native(root),
        "PATH_INFO": _native(path),
        "QUERY_STRING": scope["query_string"].decode("latin-1"),
        "REMOTE_ADDR": client[0],
        "SERVER_PORT": str(server[1] or 0),
        "wsgi.url_scheme": scope.get("scheme", "http"),
        "wsgi.input": io.BytesIO(body),
        **dict(_headers(scope)),
        "CONTENT_LENGTH": str(len(body)),
    }


def _headers(scope: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    together: dict[str, list[str]] = {}
    for name, value in scope["headers"]:
        together.setdefault(name.decode("latin-1").upper(), []).append(value.decode("latin-1"))
    for name, values in together.items():
        key = name.replace("-", "_")
        if "_" not in name:  # as web servers do: it would count as a header that has a hyphen
            yield (
                key if key == "CONTENT_TYPE" else f"HTTP_{key}",
                ("; " if key == "COOKIE" else ",").join(values),
            )


def _native(text: str) -> str:
    """A text whose characters are bytes, as PEP 3333 wants it."""
    return text.encode(errors="surrogateescape").decode("latin-1")


def _is_ending() -> bool:
    """Whether the server has been told to end, as far as it can be known.

    Uvicorn would wait for the answers that go on. It tells applications only when they have ended.
    """
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return bool(getattr(server, "should_exit", False))
