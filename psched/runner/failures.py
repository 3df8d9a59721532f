"""What a worker is told about an exception that users' code has raised in a runner."""

import logging
import signal
import sys
import threading

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
from psched.runner.end_report import ProgramEnd
from psched.runner.error_text import error_text, without_own

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
