"""Text of unknown origin: made safe for a terminal and a log, and kept short."""

import traceback
import unicodedata

LONGEST = 2000
"""Characters that are kept of an error's text, and of others that are sent between processes."""

LONGEST_MESSAGE = 20_000
"""Characters that are kept of a message in the log."""

LONGEST_TRACEBACK = 40_000
"""Characters that are kept of a traceback, with all the exceptions in it."""

_INDENT = 5
"""Characters that the log adds to each line of a traceback: a line feed and the indent."""

LONGEST_BRIEF = 10 * LONGEST + 100
"""The longest text that `brief` returns, because one character becomes up to ten."""


def visible(text: str, *, lines: bool = False) -> str:
    r"""A text in which nothing moves a cursor, ends a line, is invisible or reorders the rest.

    Control characters, bidirectional controls, zero-width characters, line separators and lone
    surrogates become visible escapes: ``\x1b``, ``\u202e``.

    Args:
        text: may come from anywhere.
        lines: whether it may have several lines: line feeds and tabs are kept.
    """
    plain = text.replace("\n", "").replace("\t", "") if lines else text
    if plain.isprintable():
        return text
    kept = "\n\t" if lines else ""
    return "".join(c if c in kept or _is_harmless(c) else ascii(c)[1:-1] for c in text)


def cut(text: str, most: int = LONGEST) -> str:
    """The first ``most`` characters of a text, and a note on how many were dropped."""
    if len(text) <= most:
        return text
    return f"{text[:most]} … ({len(text) - most} characters more)"


def brief(text: str) -> str:
    """Any text as one short line that is safe to show."""
    line = visible(" ".join(text[:LONGEST].split()))
    dropped = len(text) - LONGEST
    return f"{line} … ({dropped} characters more)" if dropped > 0 else line


def traceback_of(error: BaseException) -> str:
    """An error's traceback with its causes, notes and text; each line and the whole are cut."""
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
    # To Python only the ASCII space is printable; but the other spaces are harmless, too.
    return character.isprintable() or unicodedata.category(character) == "Zs"
