"""Writes the output of commands to the terminal and to files."""

import io
import os
import stat
import sys
from pathlib import Path
from typing import TextIO

from psched.base.errors import ConfigError
from psched.base.texts import visible


def are_terminals(*streams: TextIO | None) -> bool:
    """Whether all of these streams are terminals. One that is closed, None, is none."""
    return all(stream is not None and stream.isatty() for stream in streams)


class _VisibleStream(io.TextIOWrapper):
    """A text stream that escapes all characters that can control a terminal."""

    def write(self, text: str) -> int:
        """Write a text with escapes in place of invisible characters; return the text's length."""
        super().write(visible(text, lines=True))
        return len(text)

    def write_unfiltered(self, text: str) -> None:
        """Write a text as it is."""
        super().write(text)


def filter_output() -> None:
    """Escape control characters, except line feeds and tabs, in everything this process prints.

    Without this filter, a user who can write rows could send control characters to the terminal of
    an administrator: in a name, reason or error. The filter applies even to tracebacks.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, io.TextIOWrapper):
            continue  # the stream stays unfiltered: it is closed, or a test has replaced it
        # The encoding is never ASCII, because Click would bypass this filter for an ASCII stream.
        encoding = "utf-8" if stream.encoding.lower() in _ASCII else stream.encoding
        filtered = _VisibleStream(
            stream.buffer,
            encoding=encoding,
            errors="backslashreplace",
            line_buffering=stream.line_buffering,
        )
        setattr(sys, name, filtered)


def write_styled(line: str) -> None:
    """Write a line with colours, whose other characters are safe for a terminal."""
    if isinstance(sys.stdout, _VisibleStream):
        sys.stdout.write_unfiltered(line)
    else:
        sys.stdout.write(line)


def unfilter_output() -> None:
    """Undo `filter_output`, because the output of tasks must not be changed."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, _VisibleStream):
            stream.flush()
            # The filtered stream is detached, because it would otherwise close the original stream
            # when it is garbage-collected.
            stream.detach()
            setattr(sys, name, getattr(sys, f"__{name}__"))


_ASCII = ("ascii", "us-ascii", "ansi_x3.4-1968")


def one_line(stored: str | bytes | None) -> str:
    """Return a text or bytes as one line, with control characters escaped; empty for None."""
    if stored is None:
        return ""
    text = stored.decode(errors="backslashreplace") if isinstance(stored, bytes) else stored
    return visible(text)


def write_file(path: Path, content: str, *, force: bool, secret: bool = False) -> None:
    """Write a file atomically: other processes read either the old content or the new content."""
    if path.exists() and not force:
        raise ConfigError(f"{path} exists already; --force replaces it")
    import tempfile  # noqa: PLC0415  # few commands write a file

    umask = os.umask(0o077)
    os.umask(umask)
    mode = stat.S_IRUSR | stat.S_IWUSR if secret else 0o666 & ~umask
    target = path.resolve()
    try:
        # A temporary file is written and then renamed, so that no process can read a part of the
        # content, or read a secret before the file's mode is set.
        descriptor, made = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(content)
                os.fchmod(descriptor, mode)
            Path(made).replace(target)
        finally:
            Path(made).unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from None
    except UnicodeEncodeError:
        raise ConfigError(f"{path}: cannot be written: an option is not UTF-8 text") from None
