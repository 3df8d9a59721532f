"""Compression of payloads: a large payload is compressed before it is stored.

The format is gzip, as in PerfectQueue; in a column that holds only text, gzip in base64. A
compressed payload is recognised by its first bytes, because no JSON text begins with them.
"""

import base64
import zlib
from collections.abc import Callable
from contextlib import suppress

LARGEST = 64 * 2**20
"""The largest size of a decompressed payload, in bytes."""

_GZIP = b"\x1f\x8b"
_GZIP_IN_BASE64 = b"H4sI"  # base64 of _GZIP and of 8, the number of gzip's only compression method
_WINDOW = 31  # makes zlib use the largest window, and write and expect a gzip header

_LEVEL = 1
"""The gzip level. It compresses JSON to about 40 % of its size.

The highest level would compress JSON to 36 %, but would take twice as long.
"""


class TooLargeError(ValueError):
    """A compressed payload is larger than the limit."""


ColumnForm = Callable[[bytes], str | bytes]
"""Converts bytes to a value that the column can hold."""


def compress(plain: str | bytes, above: int, form: ColumnForm) -> str | bytes:
    """The value to store for a payload: compressed if the payload is large, else unchanged."""
    content = plain.encode() if isinstance(plain, str) else plain
    if not 0 < above < len(content) or content.startswith((_GZIP, _GZIP_IN_BASE64)):
        return plain
    compressor = zlib.compressobj(_LEVEL, wbits=_WINDOW)
    stored = form(compressor.compress(content) + compressor.flush())
    return stored if len(stored) < len(content) else plain


def decompress(stored: str | bytes, most: int = LARGEST) -> str | bytes:
    """The decompressed payload; a payload that is not compressed is returned unchanged."""
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
    """The beginning of a payload, decompressed if possible, and whether the payload is longer."""
    plain, content = stored, _gzip_of(stored)
    if content is not None:
        with suppress(zlib.error):
            plain = zlib.decompressobj(_WINDOW).decompress(content, most + 1)
    return plain[:most], len(plain) > most


def readable(stored: str | bytes | None) -> str | bytes | None:
    """A payload for display or comparison: decompressed if possible, else as it is stored."""
    try:
        return stored and decompress(stored)
    except ValueError:
        return stored


def in_base64(compressed: bytes) -> str:
    """Encode compressed bytes in base64.

    This function is the `ColumnForm` for columns that hold only text.
    """
    return base64.b64encode(compressed).decode()


def _gzip_of(stored: str | bytes) -> bytes | None:
    """The gzip bytes in a column; None if the payload is not compressed."""
    if isinstance(stored, bytes) and stored.startswith(_GZIP):
        return stored
    begins = stored[: len(_GZIP_IN_BASE64)]
    if begins not in (_GZIP_IN_BASE64, _GZIP_IN_BASE64.decode()):
        return None
    try:
        # Whitespace is removed, because the SQL functions of databases break base64 into lines.
        text = stored.encode("ascii") if isinstance(stored, str) else stored
        content = base64.b64decode(b"".join(text.split()), validate=True)
    except ValueError:
        return None
    return content if content.startswith(_GZIP) else None
