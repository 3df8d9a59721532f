"""Payloads are compressed before they are stored if they are large.

A compressed payload is gzip, as in PerfectQueue; in a column that holds only text, gzip in base64.
It is recognised by its first bytes, because no JSON begins like either.
"""

import base64
import zlib
from collections.abc import Callable
from contextlib import suppress

LARGEST = 64 * 2**20
"""Bytes; a payload is at most this large when decompressed."""

_GZIP = b"\x1f\x8b"
_GZIP_IN_BASE64 = b"H4sI"  # _GZIP and 8, which is the number of the only compression method
_WINDOW = 31  # tells zlib to use the largest window, and to expect a gzip header

_LEVEL = 1
"""The highest level compresses JSON to 36 %, this one to 40 % in half the time."""


class TooLargeError(ValueError):
    """A compressed payload is larger than the limit."""


ColumnForm = Callable[[bytes], str | bytes]
"""Converts bytes to a value that the column can hold."""


def compress(plain: str | bytes, above: int, form: ColumnForm) -> str | bytes:
    """A payload as it is stored.

    Args:
        plain: the payload; if it is compressed already, it is returned unchanged.
        above: size in bytes above which it is compressed, if that makes it smaller; 0: never.
        form: converts compressed bytes for the column.
    """
    content = plain.encode() if isinstance(plain, str) else plain
    if not 0 < above < len(content) or content.startswith((_GZIP, _GZIP_IN_BASE64)):
        return plain
    compressor = zlib.compressobj(_LEVEL, wbits=_WINDOW)
    stored = form(compressor.compress(content) + compressor.flush())
    return stored if len(stored) < len(content) else plain


def decompress(stored: str | bytes, most: int = LARGEST) -> str | bytes:
    """A payload as it was declared, whether or not it is stored compressed.

    Args:
        stored: the column; any client may have written it.
        most: the largest size in bytes that is decompressed.

    Raises:
        ValueError: it cannot be decompressed.
    """
    content = _gzip_of(stored)
    if content is None:
        return stored
    decompressor = zlib.decompressobj(_WINDOW)
    try:
        plain = decompressor.decompress(content, most + 1)
    except zlib.error as error:
        raise ValueError(f"is compressed, and broken: {error}") from None
    if len(plain) > most:
        raise TooLargeError(f"is compressed, and has more than {most} bytes")
    if not decompressor.eof:
        raise ValueError("is compressed, and has no end")
    return plain


def beginning(stored: str | bytes, most: int) -> tuple[str | bytes, bool]:
    """The beginning of a payload, decompressed if possible; and whether there is more.

    Args:
        stored: the column; any client may have written it.
        most: bytes or characters.
    """
    plain, content = stored, _gzip_of(stored)
    if content is not None:
        with suppress(zlib.error):
            plain = zlib.decompressobj(_WINDOW).decompress(content, most + 1)
    return plain[:most], len(plain) > most


def readable(stored: str | bytes | None) -> str | bytes | None:
    """A payload for people: decompressed if possible."""
    try:
        return stored and decompress(stored)
    except ValueError:
        return stored


def in_base64(compressed: bytes) -> str:
    """The `ColumnForm` of columns that hold only text."""
    return base64.b64encode(compressed).decode()


def _gzip_of(stored: str | bytes) -> bytes | None:
    """The gzip bytes in a column; None if the payload is not compressed."""
    if isinstance(stored, bytes) and stored.startswith(_GZIP):
        return stored
    begins = stored[: len(_GZIP_IN_BASE64)]
    if begins not in (_GZIP_IN_BASE64, _GZIP_IN_BASE64.decode()):
        return None
    try:
        # SQL functions of databases break base64 into lines.
        text = stored.encode("ascii") if isinstance(stored, str) else stored
        content = base64.b64decode(b"".join(text.split()), validate=True)
    except ValueError:
        return None
    return content if content.startswith(_GZIP) else None
