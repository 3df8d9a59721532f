"""Payloads that are text or bytes: they are stored wrapped in a JSON object.

The column ``data`` always holds a JSON object. The row's option ``payload`` tells whether the
object only wraps the payload: with ``payload: text`` the object is ``{"data": "<text>"}``, with
``payload: base64`` it is ``{"data_base64": "…"}``. Without the option, the object is the payload
itself, even if it has a field of one of these names.
"""

import base64
import json
from collections.abc import Mapping
from typing import Any

OPTION = "payload"
"""The name of the row's option that tells how ``data`` wraps the payload."""

TEXT, BASE64 = "text", "base64"

WRAPPED_IN: Mapping[str, str] = {TEXT: "data", BASE64: "data_base64"}
"""For each value of the option: the name of the only field of the wrapping object."""


def wrap(raw: bytes) -> tuple[dict[str, str], str]:
    """The object that wraps a payload, and the option's value.

    The value is `TEXT` if the payload is valid UTF-8, else `BASE64`.
    """
    try:
        return {WRAPPED_IN[TEXT]: raw.decode()}, TEXT
    except UnicodeDecodeError:
        return {WRAPPED_IN[BASE64]: base64.b64encode(raw).decode()}, BASE64


def unwrap(text: str, form: str | None) -> bytes:
    """The payload as it was submitted: the wrapped text or bytes, or the text of the object."""
    if form is not None:
        found = _wrapped(json.loads(text), form)
        if found is not None:
            return found
    return text.encode()


def _wrapped(data: Mapping[str, Any], form: str) -> bytes | None:
    name = WRAPPED_IN[form]
    content = data.get(name)
    if len(data) != 1 or not isinstance(content, str):
        return None
    if form == TEXT:
        return content.encode()
    try:
        return base64.b64decode(content, validate=True)
    except ValueError:
        return None
