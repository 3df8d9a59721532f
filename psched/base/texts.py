"""Functions that make texts of unknown origin safe for a terminal and a log, and short."""

import re
import traceback
import unicodedata

HOST_NAME = re.compile(r"[a-z0-9_][a-z0-9_.-]{0,62}")
"""The name or a label of a host, in small letters."""

LONGEST = 2000
"""The number of characters to which an error's text, or a text sent to a process, is cut."""

LONGEST_MESSAGE = 20_000
"""The number of characters to which a message in the log is cut."""

LONGEST_TRACEBACK = 40_000
"""The number of characters to which a traceback, with all exceptions in it, is cut."""

_INDENT = 5
"""The number of characters that the log adds to each line of a traceback: line feed and indent."""

LONGEST_BRIEF = 10 * LONGEST + 100
"""The largest number of characters in a result of `brief`.

An escape has up to ten characters, and the note on dropped characters has fewer than 100.
"""


def visible(text: str, *, lines: bool = False) -> str:
    r"""A text with visible escapes (``\x1b``, ``\u202e``) in place of harmful characters.

    Control characters, bidirectional controls, zero-width characters, line separators and lone
    surrogates are replaced.
    """
    plain = text.replace("\n", "").replace("\t", "") if lines else text
    if plain.isprintable():
        return text
    kept = "\n\t" if lines else ""
    return "".join(c if c in kept or _is_harmless(c) else ascii(c)[1:-1] for c in text)


def storable(text: str) -> str:
    """The text with marks in place of NUL and halves of surrogate pairs, which no store accepts."""
    if text.isascii() and "\0" not in text:  # nearly every text; the check is fast
        return text
    return text.replace("\0", "\ufffd").encode(errors="replace").decode()


def cut(text: str, most: int = LONGEST) -> str:
    """The first ``most`` characters of a text, and a note on the number of dropped characters."""
    if len(text) <= most:
        return text
    return f"{text[:most]} … ({len(text) - most} characters more)"


def brief(text: str) -> str:
    """A text of any origin as one short line that is safe to show."""
    line = visible(" ".join(text[:LONGEST].split()))
    dropped = len(text) - LONGEST
    return f"{line} … ({dropped} characters more)" if dropped > 0 else line


def counted(number: int, noun: str) -> str:
    """A number with a noun whose plural ends with s: ``1 run``, ``2 runs``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def traceback_of(error: BaseException) -> str:
    """An error's traceback with causes, notes and text; its lines and its length are limited."""
    lines: list[str] = []
    left = LONGEST_TRACEBACK
    try:
        for part in traceback.TracebackException.from_exception(error, compact=True).format():
            for line in cut(part.rstrip("\n"), LONGEST_TRACEBACK).split("\n"):
                lines.append(cut(line))
                left -= len(lines[-1]) + _INDENT
                if left < 0:
                    lines.append("… (the rest of the traceback is left out)")
                    return "\n".join(lines)
    except Exception as failure:  # noqa: BLE001  # an error's attributes can be anything
        lines.append(f"… (the traceback cannot be written: {type(failure).__name__})")
    return "\n".join(lines)


def _is_harmless(character: str) -> bool:
    # Spaces are checked separately: Python counts only the ASCII space as printable, but the other
    # spaces are also harmless.
    return character.isprintable() or unicodedata.category(character) == "Zs"
