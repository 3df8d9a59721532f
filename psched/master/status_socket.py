"""The socket on which a master tells how it stands: ``psched status`` reads it.

Who connects is sent one JSON document, then the end. Nothing is read but the end: what cannot be
commanded needs no protection beyond its file mode. The sockets of all masters on a host lie
together in a folder, each named after its master's pid.
"""

import json
import logging
import os
import re
import select
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from psched.base import regular_files
from psched.master.messages import STATUS
from psched.process import tree
from psched.process.signals import Waitable

_log = logging.getLogger("psched.master")

_MOST_READERS = 32
"""More are turned away: nobody who connects may use up our descriptors."""

_PATIENCE = 5.0
"""Seconds for a question and its answer: who takes longer hangs."""

_DEAF = 1.0
"""Seconds for which nobody is let in when that was not possible."""

_GLANCE = 1.0
"""Seconds between two looks whether the socket is still there: tasks can remove it."""

_MOST_SOCKETS = 1000
"""That are looked at in a folder before a start: tasks can leave any number there."""


def service_folder(environ: Mapping[str, str]) -> Path | None:
    """The runtime folder that systemd has given to this service, if it has.

    Args:
        environ: the environment variables.
    """
    # All folders of the unit are listed, divided by colons.
    first, _, _ = environ.get("RUNTIME_DIRECTORY", "").partition(":")
    return Path(first) if first else None


def folders(environ: Mapping[str, str]) -> list[Path]:
    """Where a master's socket may be, the best place first.

    Args:
        environ: the environment variables.
    """
    if (own := service_folder(environ)) is not None:
        return [own]
    places = [Path("/run/psched")]
    for base, below in ("XDG_RUNTIME_DIR", "psched"), ("HOME", ".local/state/psched"):
        if environ.get(base):
            places.append(Path(environ[base], below))
    return places


class StatusReader:
    """Somebody who has connected.

    Attributes:
        unsent: whether something waits for the socket to take it.
        closed: it has all that it came for, or is gone.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)  # noqa: FBT003  # its parameter has no name
        self._connection = connection
        self._outgoing = b""
        self._since = time.monotonic()
        self.answered = False
        self.closed = False

    def fileno(self) -> int:
        """The descriptor to wait on."""
        return self._connection.fileno()

    @property
    def unsent(self) -> bool:
        """Whether something waits for the socket to take it."""
        return bool(self._outgoing)

    def answer(self, document: bytes) -> None:
        """Send this, as fast as it is taken."""
        self._outgoing, self.answered = document, True

    def advance(self) -> None:
        """Send what is taken; see whether the other side has left, or takes too long."""
        if time.monotonic() > self._since + _PATIENCE:
            self.close()
            return
        try:
            with suppress(BlockingIOError):
                # The end: who asks has left. Anything else is not ours to read, and would wake us
                # again and again.
                self._connection.recv(1)
                self.close()
                return
            if self._outgoing:
                self._outgoing = self._outgoing[self._connection.send(self._outgoing) :]
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        if self.answered and not self._outgoing:
            self.close()

    def close(self) -> None:
        """Hang up."""
        self.closed = True
        self._connection.close()


class StatusSocket:
    """A master's end: the socket, and who has connected.

    Args:
        places: folders, the first that can be used is used; none: there is no socket.
    """

    def __init__(self, places: list[Path]) -> None:
        self._path: Path | None = None
        self._found: os.stat_result | None = None
        self._next_glance = 0.0
        self._replaced = False
        self._deaf_until = 0.0
        self._listening: socket.socket | None = None
        self._readers: list[StatusReader] = []
        problems = []
        for folder in places:
            try:
                folder.mkdir(mode=0o755, parents=True, exist_ok=True)
                _sweep(folder)
                self._open(folder / f"master.{os.getpid()}.sock")
            except OSError as error:
                problems.append(f"{folder}: {error.strerror}")
            else:
                return
        if problems:
            _log.warning("psched status will not find this master: %s", "; ".join(problems))

    @property
    def waiting(self) -> list[StatusReader]:
        """Those who have no answer yet."""
        return [reader for reader in self._readers if not reader.answered]

    @property
    def links(self) -> list[Waitable]:
        """What to wait on."""
        if self._listening is None or time.monotonic() < self._deaf_until:
            return [*self._readers]
        return [_Door(self._listening), *self._readers]

    def advance(self) -> None:
        """Let in who knocks, send what is taken."""
        self._glance()
        if self._listening is not None and time.monotonic() >= self._deaf_until:
            self._let_in(self._listening)
        for reader in self._readers:
            reader.advance()
        self._readers = [reader for reader in self._readers if not reader.closed]

    def answer(self, describe: Callable[[], Mapping[str, Any]]) -> None:
        """Send everybody who waits a document."""
        if waiting := self.waiting:
            document = json.dumps(describe()).encode()
            for reader in waiting:
                reader.answer(document)
            self.advance()

    def close(self) -> None:
        """Remove the socket."""
        if self._listening is not None and self._path is not None:
            self._listening.close()
            self._listening = None
            with suppress(OSError):
                regular_files.clear(self._path)

    def _let_in(self, listening: socket.socket) -> None:
        try:
            # Those who come meanwhile come next time: signals and workers wait, too.
            for _ in range(_MOST_READERS):
                reader = StatusReader(listening.accept()[0])
                if len(self._readers) >= _MOST_READERS:
                    reader.close()
                else:
                    self._readers.append(reader)
        except (BlockingIOError, ConnectionAbortedError):
            pass
        except OSError:
            # No descriptor is left: who knocks would wake us again at once.
            self._deaf_until = time.monotonic() + _DEAF

    def _glance(self) -> None:
        """Make the socket again if somebody has removed or replaced it, as any task can."""
        now = time.monotonic()
        if self._path is None or self._found is None or self._listening is None:
            return
        if now < self._next_glance:
            return
        self._next_glance = now + _GLANCE
        with suppress(OSError):
            if os.path.samestat(self._path.lstat(), self._found):
                return
        if not self._replaced:
            # Said once: somebody may do it again and again.
            _log.warning("%s was removed or replaced: it is made again", self._path)
            self._replaced = True
        before = self._listening
        with suppress(OSError):
            self._open(self._path)
            before.close()

    def _open(self, path: Path) -> None:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        regular_files.clear(path)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        before = os.umask(0o177)
        try:
            with _short(path) as address:
                listening.bind(address)
            listening.listen()
            found = path.lstat()
        except OSError:
            listening.close()
            raise
        finally:
            os.umask(before)
        listening.setblocking(False)  # noqa: FBT003
        self._path, self._listening, self._found = path, listening, found


class _Door:
    """The listening socket, as something to wait on."""

    unsent = False
    closed = False

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening

    def fileno(self) -> int:
        """The descriptor to wait on."""
        return self._listening.fileno()


def ask_all(places: list[Path]) -> Iterator[tuple[int, Mapping[str, Any] | OSError]]:
    """The pid of each master whose socket is found, and what it says or why it does not.

    All are asked at once: one that does not answer takes no time from the others.
    """
    asked: list[tuple[int, _Question | OSError]] = []
    for folder in places:
        with suppress(OSError):
            for pid, path in _sockets(folder):
                try:
                    asked.append((pid, _Question(path)))
                except ConnectionRefusedError:
                    pass  # it has been killed
                except OSError as error:
                    asked.append((pid, error))
    _listen([each for _, each in asked if isinstance(each, _Question)])
    for pid, each in asked:
        try:
            yield pid, each.answer() if isinstance(each, _Question) else each
        except OSError as error:
            yield pid, error


class _Question:
    """A master is asked how it stands, or somebody who poses as one.

    Raises:
        OSError: nobody can be asked.
    """

    def __init__(self, path: Path) -> None:
        self._line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._line.setblocking(False)  # noqa: FBT003  # its parameter has no name
        self._received = bytearray()
        self.failure: OSError | None = None
        try:
            with _short(path) as address:
                self._line.connect(address)
        except BaseException:
            self._line.close()
            raise

    def fileno(self) -> int:
        """The descriptor to wait on."""
        return self._line.fileno()

    def hear(self) -> bool:
        """Take what has arrived; whether there may be more."""
        try:
            chunk = self._line.recv(1 << 16)
        except OSError as error:
            self.failure = error
            return False
        self._received += chunk
        if len(self._received) > STATUS.longest:
            self.failure = OSError(f"it has sent more than {STATUS.longest} bytes")
            return False
        return bool(chunk)

    def answer(self) -> Mapping[str, Any]:
        """What it has said.

        Raises:
            OSError: nothing that can be understood.
        """
        self._line.close()
        if self.failure is not None:
            raise self.failure
        try:
            document = json.loads(self._received)
        except (ValueError, RecursionError):
            raise ConnectionResetError("it has hung up") from None
        if (fault := STATUS.fault(document)) is not None:
            text = f"it has sent {fault}; is it of another release of psched?"
            raise ConnectionAbortedError(text)
        said: Mapping[str, Any] = document
        return said


def _listen(questions: list[_Question]) -> None:
    """Wait for the answers."""
    until = time.monotonic() + _PATIENCE
    waiter = select.poll()
    waiting = {each.fileno(): each for each in questions}
    for number in waiting:
        waiter.register(number, select.POLLIN)
    while waiting:
        left = until - time.monotonic()
        if left <= 0:
            for each in waiting.values():
                each.failure = TimeoutError("timed out")
            return
        for number, _ in waiter.poll(left * 1000):
            if not waiting[number].hear():
                waiter.unregister(number)
                del waiting[number]


def _sockets(folder: Path) -> list[tuple[int, Path]]:
    """The sockets of masters in a folder, and the pids in their names."""
    found = [re.fullmatch(r"master\.([0-9]{1,10})\.sock", path.name) for path in folder.iterdir()]
    return sorted((int(match[1]), folder / match[0]) for match in found if match)


def _sweep(folder: Path) -> None:
    """Remove what killed masters have left."""
    for pid, path in _sockets(folder)[:_MOST_SOCKETS]:
        if tree.alive(pid):
            continue  # it may be about to listen
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line, suppress(OSError):
            line.setblocking(False)  # noqa: FBT003
            try:
                with _short(path) as address:
                    line.connect(address)
            except ConnectionRefusedError:
                regular_files.clear(path)


@contextmanager
def _short(path: Path) -> Iterator[str]:
    """An address for a socket at this path: one in sockaddr_un has 107 bytes at most."""
    folder = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
