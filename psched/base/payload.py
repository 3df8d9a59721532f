"""Payloads that are not a JSON object: plain text, or bytes, carried inside of one.

The column ``data`` always holds a JSON object. The option ``payload`` of the row says when that
object only carries the payload: ``{"data": "<text>"}`` with ``payload: text``, and
``{"data_base64": "…"}`` with ``payload: base64``. Without the option, such an object is itself the
payload.
"""

import base64
import json
from collections.abc import Mapping
from typing import Any

OPTION = "payload"
"""The name of the option."""

TEXT, BASE64 = "text", "base64"

WRAPPED_IN: Mapping[str, str] = {TEXT: "data", BASE64: "data_base64"}
"""The values of the option, and the only field of an object that carries such a payload."""


def wrap(raw: bytes) -> tuple[dict[str, str], str]:
    """The object that carries a payload, and the value of the option: text if it is UTF-8."""
    try:
        return {WRAPPED_IN[TEXT]: raw.decode()}, TEXT
    except UnicodeDecodeError:
        return {WRAPPED_IN[BASE64]: base64.b64encode(raw).decode()}, BASE64


def unwrap(text: str, form: str | None) -> bytes:
    """The payload as it was submitted: what is carried, or the JSON object's own text.

    Args:
        text: a JSON object, as text.
        form: the value of the option; None: the row does not have it. An object that does not have
            the form it names carries nothing: a handler has replaced the payload by an object.
    """
    if form is not None:
        found = _carried(json.loads(text), form)
        if found is not None:
            return found
    return text.encode()


def _carried(data: Mapping[str, Any], form: str) -> bytes | None:
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
