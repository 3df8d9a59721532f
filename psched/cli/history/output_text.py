"""Writes what tasks have printed to the terminal."""

import codecs
import sys

import click

from psched.base.texts import visible
from psched.cli.output import one_line
from psched.cli.shown import result
from psched.cli.time_format import format_time, format_took
from psched.core.history.records import Outcome
from psched.core.history.redaction import Redaction
from psched.core.history.run import Run
from psched.core.output.output import Output

_LONGEST_LINE = 2**16
"""If values are hidden, an incomplete line is held back, because a value ends with its line. A line
of so many characters is shown nevertheless."""


def heading(output: Output, run: Run | None, *, is_running: bool = False) -> str:
    """A line above an output, see `about_output`."""
    return f"==> {about_output(output, run, is_running=is_running)} <=="


def about_output(output: Output, run: Run | None, *, is_running: bool = False) -> str:
    """Say which attempt has printed an output, how it has ended, and what is missing."""
    when = format_time(output.scheduled_time)
    parts = [f"{one_line(output.key)}, attempt {output.attempt} of {when}"]
    if is_running:
        parts.append("running")
    elif output.is_live:
        if run is not None:
            parts.append(result(run))
        written = f"written {format_time(int(output.ended))}"
        is_lost = run is not None and run.outcome == Outcome.LOST
        when = "before its worker was lost" if is_lost else "while it ran"
        parts.append(f"{written} {when}; what followed is not known")
    else:
        ended = f"ended {format_time(int(output.ended))}"
        parts.append(ended if run is None else f"{result(run)}, {ended}")
        if run is not None and run.took is not None:
            parts.append(f"took {format_took(run.took)}")
    if output.dropped != 0:
        parts.append(left_out(output.dropped))
    return "; ".join(parts)


def left_out(dropped: int | None) -> str:
    """A text about bytes that are missing."""
    if dropped is None:
        return "output is lost here"
    return f"{dropped:,} bytes before this are left out"


class OutputPrinter:
    """Writes captured output to standard output, piece by piece.

    Args:
        redaction: hides the values of fields.
        raw: whether the bytes are written unchanged; otherwise as text with visible control
            characters.
    """

    def __init__(self, redaction: Redaction, *, raw: bool) -> None:
        self._redaction = redaction
        self._raw = raw
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self._in_line = False

    def write(self, piece: bytes) -> None:
        """Write the next bytes."""
        if not piece:
            return
        if sys.stdout is None:
            return  # standard output is closed
        if self._raw:
            sys.stdout.flush()
            sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
            return
        self._write(self._decoder.decode(piece))

    def end(self) -> None:
        """Write what was held back, and end the line."""
        if self._raw:
            return
        self._write(self._decoder.decode(b"", final=True), last=True)
        if self._in_line:
            self._in_line = False
            click.echo()

    def _write(self, text: str, *, last: bool = False) -> None:
        if self._redaction:
            text = self._held + text
            end = len(text) if last or len(text) > _LONGEST_LINE else text.rfind("\n") + 1
            text, self._held = text[:end], text[end:]
            text = self._redaction.text(text)
        if text:
            self._in_line = not text.endswith("\n")
            click.echo(visible(text, lines=True), nl=False)
            sys.stdout.flush()
