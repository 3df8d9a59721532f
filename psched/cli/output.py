"""What commands write to the terminal and to files, and how they report errors and end."""

import io
import os
import stat
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, ParamSpec, TextIO, TypeVar

import click

from psched.base.errors import ConfigError, PschedError
from psched.base.loader import loading_by
from psched.base.texts import brief, visible
from psched.config.references import current_folder

if TYPE_CHECKING:
    from psched.triggers.custom import Call, NextAfter

P = ParamSpec("P")
R = TypeVar("R")


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


# --- errors, and the end of a command --------------------------------------------------------


def report_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Make psched's errors in a command a line on standard error and exit status 1.

    While the command runs, users' trigger classes are loaded and called in a child process.
    """

    @wraps(command)
    def reporting(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            with loading_by(_find_by_helper):
                return command(*args, **kwargs)
        except BrokenPipeError:
            raise  # click exits with status 1 without a message
        except (PschedError, OSError) as error:  # OSError: the disk is full, or a path unreadable
            # Commands that show no time, such as health, would load it at each start.
            from psched.cli.time_format import local_times  # noqa: PLC0415

            raise click.ClickException(_deleted_folder(error) or local_times(str(error))) from error

    return reporting


def _deleted_folder(error: Exception) -> str | None:
    """What a system call means that found no file and names none: the current folder is gone."""
    if isinstance(error, FileNotFoundError) and error.filename is None:
        try:
            current_folder()
        except FileNotFoundError as deleted:
            return deleted.strerror
    return None


def _find_by_helper(call: "Call") -> "NextAfter":
    from psched.cli.trigger_helper import find  # noqa: PLC0415  # few commands need it

    return find(call)


def run_and_exit(run_master: Callable[[], int]) -> NoReturn:
    """Run a master, and exit with its status. Print an error at its start on standard error."""
    from psched.base.log_lines import is_journal  # noqa: PLC0415  # only for masters, as what follows
    from psched.master.generation_spec import BAD_CONFIG  # noqa: PLC0415
    from psched.master.pidfile import AlreadyRunningError  # noqa: PLC0415
    from psched.master.reports.sd_notify import Notifier  # noqa: PLC0415
    from psched.service.run import ALREADY_RUNNING  # noqa: PLC0415

    unfilter_output()
    try:
        status = run_master()
    except (ConfigError, AlreadyRunningError) as error:
        # In systemd's journal, each line needs the priority of an error.
        prefix = "<3>" if is_journal(2) else ""
        for line in f"Error: {visible(str(error), lines=True)}".split("\n"):
            click.echo(prefix + line, err=True)
        # The service manager shows this line in the status of the service, which has ended then.
        Notifier().send(STATUS=f"cannot start: {brief(str(error))}")
        status = BAD_CONFIG if isinstance(error, ConfigError) else ALREADY_RUNNING
    sys.exit(status)
