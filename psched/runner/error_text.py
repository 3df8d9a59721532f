"""The text of an exception that the run history keeps."""

import traceback
from types import TracebackType

from psched.base.errors import described
from psched.base.texts import visible
from psched.core.history.records import LONGEST_ERROR

_OWN = (
    "psched.runner.runner",
    "psched.runner.coroutines",
    "psched.application.calling",
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
