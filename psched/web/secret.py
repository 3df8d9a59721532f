"""The secret of a user's web pages: a file that nobody else may read, and one-time links beside it.

Whoever can read the file gets in: by the text in it, as a token, or by a link, which is a file
too. A link works once, in whatever process it is used: only one process can remove the file.
"""

import hmac
import json
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import TextIO

from psched.base.clock import Clock
from psched.base.errors import ConfigError

LINK_AGE = 300
"""Seconds after which a link works no more."""

_BYTES = 32  # of a token: nobody can guess it, so that one hash of it keeps it secret


def new_token() -> str:
    """A token that nobody can guess."""
    return os.urandom(_BYTES).hex()


def digest(token: str) -> str:
    """What a file or a name may contain in place of a token."""
    return sha256(token.encode(errors="replace")).hexdigest()


def is_same(one: str, other: str) -> bool:
    """Whether two secret texts are equal; the time that it takes tells nothing about them."""
    return hmac.compare_digest(one.encode(errors="replace"), other.encode(errors="replace"))


def usual_file(environ: Mapping[str, str]) -> Path:
    """Where the file is, unless the user has chosen another place."""
    folder, _, _ = environ.get("STATE_DIRECTORY", "").partition(":")
    if folder:
        return Path(folder, "web-token")
    state = Path(environ.get("XDG_STATE_HOME", ""))
    if state.is_absolute():  # a relative path is ignored, as the XDG specification requires
        return state / "psched" / "web-token"
    if home := environ.get("HOME"):
        return Path(home, ".local", "state", "psched", "web-token")
    raise ConfigError(
        "token file: neither STATE_DIRECTORY nor XDG_STATE_HOME nor HOME names a folder for it;"
        " name a file with --token-file"
    )


class Secret:
    """The text in the file.

    Args:
        path: the file.
        makes: whether the file is made if it is missing.
    """

    def __init__(self, path: Path, *, clock: Clock, makes: bool = True) -> None:
        self._path = path.absolute()
        self._clock = clock
        try:
            if makes:
                self._make()
            self.token = self._read(serves=makes)
        except FileNotFoundError:
            raise ConfigError(
                f"token file: {self._path} does not exist; start psched web first, as the same user"
                " and with the same --token-file"
            ) from None
        except OSError as error:
            text = f"token file: {self._path}: {error.strerror or error}"
            raise ConfigError(f"{text}; name another with --token-file") from None

    def _make(self) -> None:
        if self._path.exists():
            return
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Complete before it has its name: another process may read it at any time.
        draft = self._path.with_name(f"{self._path.name}.{os.getpid()}.new")
        _write_private(draft, new_token())
        with suppress(FileExistsError):
            os.link(draft, self._path)
        draft.unlink()

    def _read(self, *, serves: bool) -> str:
        with _open_private(self._path) as file:
            found = os.fstat(file.fileno())
            self._owner = found.st_uid
            if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise ConfigError(
                    f"token file: {self._path} is open to others, who may have read it; remove it,"
                    " so that a new one is made"
                )
            # Root may make a link to the pages of another user, but whoever owns the file knows
            # the token of the pages.
            if found.st_uid != os.geteuid() and (serves or os.geteuid() != 0):
                raise ConfigError(f"token file: {self._path} belongs to another user")
            token = file.read(1000).strip()
        if len(token) < _BYTES:
            raise ConfigError(f"token file: {self._path} has no token; remove it")
        return token

    def sign(self, purpose: str, text: str) -> str:
        """A signature that only this secret makes; those for different purposes differ."""
        key = sha256(f"{purpose}\0{self.token}".encode()).digest()
        return hmac.new(key, text.encode(errors="replace"), sha256).hexdigest()

    # --- links ------------------------------------------------------------------------------

    def new_link(self, user: str) -> str:
        """The code of a link by which a user gets in, once."""
        for each in self._path.parent.glob(f"{self._path.name}.link-*"):
            with suppress(OSError):
                if self._clock.wall() - each.stat().st_mtime > LINK_AGE:
                    each.unlink()
        code = new_token()
        path = self._link(code)
        made = json.dumps({"user": user, "until": self._clock.wall() + LINK_AGE})
        try:
            # As root: the pages are another user's, who must be able to read it.
            _write_private(path, made, self._path.stat() if os.geteuid() == 0 else None)
        except OSError as error:
            raise ConfigError(f"token file: {path}: {error.strerror or error}") from None
        return code

    def follow(self, code: str, *, remove: bool) -> str | None:
        """The user whom a link lets in; None if it is unknown, too old, or was used."""
        path = self._link(code)
        try:
            with _open_private(path) as file:
                # Who may only add files to the folder, such as /tmp, could make one.
                if not _is_private(os.fstat(file.fileno()), self._owner):
                    return None
                found = json.loads(file.read(1000))
            if remove:
                path.unlink()  # of several processes, one succeeds
        except (OSError, ValueError):
            return None
        return found["user"] if 0 <= found["until"] - self._clock.wall() <= LINK_AGE else None

    def _link(self, code: str) -> Path:
        return self._path.with_name(f"{self._path.name}.link-{digest(code)}")


def _write_private(path: Path, text: str, like: os.stat_result | None = None) -> None:
    """Write a new file that only this user may read; or who owns another file."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        if like is not None:
            # Not by the path: who owns the folder could put another file there meanwhile.
            os.fchown(file.fileno(), like.st_uid, like.st_gid)


def _open_private(path: Path) -> TextIO:
    """Open a file that may be anything: a pipe does not wait for its writer."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags), encoding="ascii", errors="replace")


def _is_private(found: os.stat_result, owner: int) -> bool:
    """Whether a file is a user's, and nobody else may read or write it."""
    is_open = found.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    return stat.S_ISREG(found.st_mode) and found.st_uid == owner and not is_open
