"""What people are told of the settings: their texts, and a JSON schema for editors."""

import ast
import inspect
import re
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import PurePath
from textwrap import dedent
from typing import Any

from psched.config import settings
from psched.config.kinds import (
    AllOrSome,
    Choice,
    Command,
    Flag,
    Kind,
    Number,
    Options,
    PerType,
    Texts,
)
from psched.config.monitoring import PARTS, Data, Expect, Headers, HooksKind, PingUrls
from psched.config.settings import SETTINGS, Config

_TEXT = {"type": "string"}
_SWITCH = {"anyOf": [{"type": "boolean"}, {"enum": ["on", "off"]}]}
_REFERENCE = {"type": "string", "pattern": r"\$\{"}
"""A reference to what stands elsewhere, as in ``${NAME}``."""

_OBJECT = {"type": ["object", "null"]}
_SIMPLE: Sequence[tuple[tuple[type[Kind], ...], Mapping[str, Any]]] = (
    ((Flag,), {"anyOf": [{"type": "boolean"}, _REFERENCE]}),
    ((AllOrSome,), {"anyOf": [_SWITCH, {"type": "array", "items": _TEXT}]}),
    (
        (Command, Texts),
        {"anyOf": [_TEXT, {"type": ["array", "null"], "items": _TEXT}]},
    ),
    ((PingUrls,), {**_OBJECT, "additionalProperties": _TEXT}),
    ((Options, Headers, Data), _OBJECT),
)
"""The schemas of kinds whose values are alike for all settings."""


@cache
def texts() -> Mapping[str, str]:
    """The text of each setting, as Markdown: it stands below the setting's field in the source.

    Python does not keep such texts, so the source is parsed, when somebody wants to read them.
    """
    declarations = [
        each
        for each in ast.parse(inspect.getsource(settings)).body
        if isinstance(each, ast.ClassDef) and each.name == Config.__name__
    ]
    found = {}
    for field, below in pairwise(declarations[0].body):
        match field, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = dedent(f"    {text}").strip()
    return found


def summary(name: str) -> str:
    """The first sentence of a setting's text, without links and backquotes."""
    sentence = re.split(r"(?<=\.)\s", texts()[name], maxsplit=1)[0]
    return re.sub(r"\s+", " ", plain(sentence)).replace("`", "")


def plain(text: str) -> str:
    """A text without the targets of its links."""
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)


def json_schema() -> dict[str, Any]:
    """A JSON schema of configuration files: settings, or a section of them per environment.

    It knows the names, types, words and bounds of settings. What else `Kind.read` refuses, and
    contradictions between settings, only psched itself finds.
    """
    each = {"$ref": "#/$defs/settings"}
    properties = {
        name: {
            "description": plain(texts()[name]),
            **_described(setting.default),
            **(_or_null(schema) if setting.optional else schema),
        }
        for name, setting in SETTINGS.items()
        if (schema := _schema(setting.kind))
    }
    sections = {
        "type": "object",
        "propertyNames": {"not": {"enum": [*SETTINGS]}},
        "additionalProperties": _or_null(each),
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Settings of psched",
        "anyOf": [each, sections, {"type": "null"}],
        "$defs": {"settings": _record(properties)},
    }


def _described(default: object) -> dict[str, Any]:
    if isinstance(default, Mapping | tuple | PurePath) or default is None:
        return {}
    return {"default": default}


def _or_null(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


def _named(each: Mapping[str, Any]) -> dict[str, Any]:
    return _or_null({"type": "object", "additionalProperties": each})


def _record(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _schema(kind: Kind) -> Mapping[str, Any]:
    """The schema of the values of a kind; a text, unless something else is known of them."""
    match kind:
        case Number():
            return _number(kind)
        case Choice():
            words = [*kind.words, *([True, False] if {"on", "off"} & {*kind.words} else ())]
            return {"anyOf": [{"enum": words}, _REFERENCE]}
        case Expect():
            off = {"enum": ["off", False, None]}
            parts = {name: {"anyOf": [off, _number(part)]} for name, part in PARTS.items()}
            return {"anyOf": [off, _record(parts)]}
        case PerType():
            return _named(_record({name: _schema(each) for name, each in kind.kinds().items()}))
        case HooksKind():
            return _named({"anyOf": [_hook(*each) for each in kind.kinds.items()]})
    return next((schema for kinds, schema in _SIMPLE if isinstance(kind, kinds)), _TEXT)


def _hook(name: str, fields: Mapping[str, Kind]) -> dict[str, Any]:
    return {**_record({each: _schema(kind) for each, kind in fields.items()}), "required": [name]}


def _number(kind: Number) -> dict[str, Any]:
    """A number within bounds; or a text, which can have a unit or be a reference."""
    number: dict[str, Any] = {"type": "integer" if kind.whole else "number", "maximum": kind.most}
    if kind.above is None:
        number["minimum"] = kind.least
    else:
        number["exclusiveMinimum"] = kind.above
    return {"anyOf": [number, _TEXT]}
