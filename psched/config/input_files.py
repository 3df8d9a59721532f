"""Files whose paths are settings: certificates, private keys and passwords that psched reads."""

import os
import stat
from pathlib import Path

from typing_extensions import override

from psched.base.file_rights import refusal_of_file
from psched.config.kinds import Kind
from psched.config.problems import InvalidValueError
from psched.config.references import Context

_CREDENTIALS = "${CREDENTIALS_DIRECTORY}"


class InputFile(Kind):
    """The path of a file that psched can read. A relative path is made absolute.

    In a value of this kind, ``${CREDENTIALS_DIRECTORY}/NAME`` means the path of the file ``NAME``.
    In values of all other kinds, it is replaced by the content of that file.

    Args:
        private: whether the file contains a secret. Such a file is refused if every user of the
            host is allowed to read it. Every file is refused if they are allowed to change it.
        needed: whether the file must be readable now. False for a file that only the service needs,
            so that other users can still use the configuration.
    """

    def __init__(self, *, private: bool = False, needed: bool = True) -> None:
        self._private = private
        self._needed = needed

    description = "the path of a file"

    @override
    def read(self, value: object, context: Context) -> Path:
        folder = Path()
        if isinstance(value, str) and value.startswith(f"{_CREDENTIALS}/") and not context.literal:
            folder /= self.text(_CREDENTIALS, context)
            value = value.removeprefix(f"{_CREDENTIALS}/")
        file = context.absolute(folder / self.text(value, context))
        if self._needed:
            _content(file, private=self._private)
        return file


def read_password(file: Path) -> str:
    """Return the password in a file, which must contain exactly one line."""
    try:
        line = _content(file, private=True).decode().removesuffix("\n")
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


def _content(file: Path, *, private: bool) -> bytes:
    try:
        # O_NONBLOCK is set, because otherwise opening a FIFO would wait until it has a writer.
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise InvalidValueError("is not a regular file")
        with os.fdopen(descriptor, "rb") as opened:
            mode = os.fstat(descriptor).st_mode
            if private and mode & (stat.S_IROTH | stat.S_IWOTH):
                raise InvalidValueError(
                    "may be read or changed by everybody on this host; run `chmod o= FILE` on it"
                )
            if reason := refusal_of_file(file, owner=False):
                raise InvalidValueError(reason)
            return opened.read()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "no path"
        raise InvalidValueError(f"cannot be read: {reason}") from None
