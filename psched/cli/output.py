"""What commands write: to the terminal, and into files."""

import io
import os
import stat
import sys
import tempfile
from pathlib import Path

from psched.base.errors import ConfigError
from psched.base.texts import visible


class _Visible(io.TextIOWrapper):
    """A stream that writes out no character that a terminal would obey."""

    def write(self, text: str) -> int:
        """Write a text; what cannot be seen in it becomes an escape."""
        super().write(visible(text, lines=True))
        return len(text)


def filter_output() -> None:
    """Have everything that this process prints pass through one filter, tracebacks too.

    Names, reasons and errors are of whoever wrote a row; the filter keeps line feeds and tabs.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, io.TextIOWrapper):
            continue  # it is closed, or of a test's making
        # Click goes around a stream that says ASCII.
        encoding = "utf-8" if stream.encoding.lower() in _ASCII else stream.encoding
        filtered = _Visible(
            stream.buffer,
            encoding=encoding,
            errors="backslashreplace",
            line_buffering=stream.line_buffering,
        )
        setattr(sys, name, filtered)


def unfilter_output() -> None:
    """Undo `filter_output`: what tasks print is theirs."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, _Visible):
            stream.flush()
            # Or it would close the original with itself.
            stream.detach()
            setattr(sys, name, getattr(sys, f"__{name}__"))


_ASCII = ("ascii", "us-ascii", "ansi_x3.4-1968")


def write_whole(path: Path, content: str, *, force: bool, secret: bool = False) -> None:
    """Write a file whole, or leave what is there.

    Args:
        path: the file.
        content: of it.
        force: replace one that is there.
        secret: nobody but its owner may read it.

    Raises:
        ConfigError: there is one, and it is not to be replaced; or it cannot be written.
    """
    if path.exists() and not force:
        raise ConfigError(f"{path} is there already; --force replaces it")
    umask = os.umask(0o077)
    os.umask(umask)
    mode = stat.S_IRUSR | stat.S_IWUSR if secret else 0o666 & ~umask
    place = path.resolve()
    try:
        # Nobody is ever to see half of it, nor a secret before its mode is set.
        descriptor, made = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name}.")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(content)
                os.fchmod(descriptor, mode)
            Path(made).replace(place)
        finally:
            Path(made).unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from None
    except UnicodeEncodeError:
        raise ConfigError(f"{path}: cannot be written: an option is not UTF-8 text") from None
