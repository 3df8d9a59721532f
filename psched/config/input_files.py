"""Files that settings name for psched to read: certificates, keys and passwords."""

import os
import stat
from pathlib import Path

from psched.config.kinds import text
from psched.config.problems import InvalidValueError
from psched.config.references import Context

_CREDENTIALS = "${CREDENTIALS_DIRECTORY}"


class Input:
    """A file that is there and can be read, made absolute.

    ``${CREDENTIALS_DIRECTORY}/NAME`` is the file here, not its content.

    Args:
        private: whether it is a secret, which not everybody on this host may read.
    """

    def __init__(self, *, private: bool = False) -> None:
        self.private = private

    def describe(self) -> str:
        """See `Kind.describe`."""
        return "the path of a file"

    def read(self, value: object, around: Context) -> Path:
        """See `Kind.read`."""
        folder = around.cwd
        if isinstance(value, str) and value.startswith(f"{_CREDENTIALS}/") and not around.literal:
            folder /= text(self, _CREDENTIALS, around)
            value = value.removeprefix(f"{_CREDENTIALS}/")
        file = folder / text(self, value, around)
        content(file, private=self.private)
        return file


def content(file: Path, *, private: bool) -> bytes:
    """What is in a file.

    Args:
        file: its path.
        private: whether it is refused where everybody may read or change it.

    Raises:
        RefusedError: it cannot be read, or by too many.
    """
    try:
        # What is no file, such as a pipe, would be waited for.
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise InvalidValueError("leads to something that is no file")
        with os.fdopen(descriptor, "rb") as opened:
            mode = os.fstat(descriptor).st_mode
            if private and mode & (stat.S_IROTH | stat.S_IWOTH):
                raise InvalidValueError(
                    "may be read or changed by everybody on this host; run `chmod o= FILE` on it"
                )
            return opened.read()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "no path"
        raise InvalidValueError(f"cannot be read: {reason}") from None


def password(file: Path) -> str:
    """The only line of a private file.

    Raises:
        RefusedError: it cannot be read, or by too many, or there is not just one line in it.
    """
    try:
        line = content(file, private=True).decode().removesuffix("\n")
    except UnicodeDecodeError:
        raise InvalidValueError("is not UTF-8 text") from None
    if not line:
        raise InvalidValueError("is empty; it must hold the password and nothing else")
    if not line.isprintable():
        raise InvalidValueError(
            "holds a second line, or a character that cannot be printed; it must hold the password"
            " and nothing else"
        )
    return line
