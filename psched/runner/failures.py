"""What a worker is told about an exception that users' code has raised in a runner."""

import logging
import signal
import sys
import threading
import traceback
from types import TracebackType

from psched.base.errors import (
    CommandError,
    LoadError,
    NotAllowedError,
    ProcessStopError,
    UnfinishedError,
    described,
    no_room,
    text_of,
)
from psched.base.texts import visible
from psched.core.history.records import LONGEST_ERROR
from psched.runner.messages import ProgramEnd

_OWN = (
    "psched.runner.runner",
    "psched.runner.coroutines",
    "psched.application.dispatch",
    "psched.application.function",
)
"""The modules whose frames are left out at the beginning of a traceback, like those of asyncio."""

_NOTE = "\n… ({} characters left out)\n"

_HEAD = LONGEST_ERROR // 4
"""The characters that stay before the gap of a text that is too long."""

_TAIL = LONGEST_ERROR - _HEAD - len(_NOTE) - 20
"""The characters that stay after the gap. They are more, because the last lines of a traceback tell
the most: the exception, and where it was raised."""


def error_text(error: BaseException) -> str:
    """An exception with its causes and its traceback, at most `LONGEST_ERROR` characters.

    If the text is too long, a part in its middle is left out. Every database can store the text:
    there are escapes in place of control characters and lone surrogates, except for line feeds and
    tabs.
    """
    try:
        shown = traceback.TracebackException.from_exception(error, compact=True)
        text = _shortened("".join(map(_shortened, shown.format())))
    except (Exception, SystemExit):  # noqa: BLE001  # an error's attributes can be anything
        text = described(error)
    return _shortened(visible(text.rstrip("\n"), lines=True))


def without_own(frames: TracebackType | None) -> TracebackType | None:
    """The part of a traceback that begins in the handler's code; at least its last frame."""
    while frames is not None and frames.tb_next is not None and _is_own(frames):
        frames = frames.tb_next
    return frames


def _is_own(frames: TracebackType) -> bool:
    module = str(frames.tb_frame.f_globals.get("__name__"))
    return module in _OWN or module.startswith("asyncio.")


def _shortened(text: str) -> str:
    dropped = len(text) - _HEAD - _TAIL
    if len(text) <= LONGEST_ERROR:
        return text
    return text[:_HEAD] + _NOTE.format(dropped) + text[-_TAIL:]


_log = logging.getLogger("psched.task")

_OWN_ERRORS = (LoadError, CommandError, NotAllowedError, UnfinishedError)
"""Errors that are logged without a traceback, because it would show only psched's own code."""

_STATUS = 0xFF
"""The bits of a number that become an exit status."""


def failed(error: BaseException, what: str) -> tuple[str, str | None]:
    """Log what something has raised; return what the worker is told: a line, and a traceback."""
    error.__traceback__ = without_own(error.__traceback__)
    failure = _told(error)
    ProgramEnd.last = ProgramEnd.last or _program_end(error)
    if isinstance(error, _OWN_ERRORS):
        _log.error("%s", failure)
        return failure, None
    if isinstance(error, ProcessStopError):
        _log.warning("%s", failure)
    else:
        _log.error("%s raised", what, exc_info=error)
    return failure, error_text(error)


def lacks_room(error: BaseException | None) -> bool:
    """Whether code could not be loaded because no process or thread was left that it starts."""
    while error is not None:
        if isinstance(error, OSError) and no_room(error):
            return True
        if isinstance(error, RuntimeError) and not isinstance(error, LoadError):
            # Python tells a want of threads by the text of this error alone.
            try:
                (probe := threading.Thread(target=int)).start()
            except RuntimeError:
                return True
            probe.join()
        error = None if error.__cause__ is error else error.__cause__  # raise error from error
    return False


def _told(error: BaseException) -> str:
    """The text, in one line, that tells the worker why a task has failed."""
    if isinstance(error, ProcessStopError):
        return f"stopped: {text_of(error) or type(error).__name__}"
    if isinstance(error, _OWN_ERRORS):
        return text_of(error) or type(error).__name__
    return described(error)


def _program_end(error: BaseException) -> ProgramEnd | None:
    """The exit status that an exception of the handler tells; None if it tells none."""
    if isinstance(error, SystemExit):
        # The status is what Python would exit with: 0 for None, 1 for a text.
        code = error.code
        status = code & _STATUS if isinstance(code, int) else int(code is not None)
        return ProgramEnd(status, None)
    # `subprocess` is not imported here, because only handlers that run programs need it.
    subprocess = sys.modules.get("subprocess")
    if subprocess is not None and isinstance(error, subprocess.CalledProcessError):
        code = error.returncode
        if type(code) is int and -signal.NSIG < code <= _STATUS:
            return ProgramEnd.of_code(code)
    return None
