"""The description of the API, as OpenAPI: made of what the pages and the actions declare."""

from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from http import HTTPStatus
from importlib.metadata import version
from inspect import getdoc
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints, is_typeddict

from psched.web.actions import ACTIONS, Action, Field, fields_of
from psched.web.asked import Parameter
from psched.web.pages import PAGES, Shown

_SIMPLE = {str: "string", int: "integer", float: "number", bool: "boolean", NoneType: "null"}
_KINDS = {"number": "integer", "checkbox": "boolean"}  # of fields; others are texts

_REFUSALS = {
    HTTPStatus.BAD_REQUEST: "A field is wrong; the text names it.",
    HTTPStatus.UNAUTHORIZED: "There is no login.",
    HTTPStatus.FORBIDDEN: "The user may not do this.",
    HTTPStatus.NOT_FOUND: "There is no such schedule or run.",
    HTTPStatus.CONFLICT: "The schedule is not in a state for this.",
    HTTPStatus.SERVICE_UNAVAILABLE: "The store does not answer, or others wait for it, too.",
}

_ERROR = {
    "type": "object",
    "properties": {"error": {"type": "string"}},
    "required": ["error"],
}


def description() -> Mapping[str, Any]:
    """The API: the documents of the pages, and the actions."""
    paths: dict[str, Any] = {
        f"/{name}.json": {"get": _reading(name, page)} for name, page in PAGES.items()
    }
    paths |= {f"/{name}": {"post": _acting(name, action)} for name, action in ACTIONS.items()}
    return {
        "openapi": "3.1.0",
        "info": {"title": "psched web", "version": version("psched")},
        # The folder of this document, because the pages can be below any path; without a slash at
        # the end, because the paths, which begin with one, are appended.
        "servers": [{"url": "../v1"}],
        "paths": paths,
        "components": {
            "schemas": {"Error": _ERROR},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _reading(name: str, page: Shown) -> Mapping[str, Any]:
    refusals = [each for each in _REFUSALS if each != HTTPStatus.CONFLICT]
    return {
        "operationId": name,
        "summary": _about(page.document),
        # With --open, everybody reads.
        "security": [{}, {"token": []}],
        "parameters": [*map(_parameter, page.fields)],
        "responses": _responses("The document of the page.", schema_of(page.document), refusals),
    }


def _parameter(each: Parameter) -> Mapping[str, Any]:
    return {
        "name": each.name,
        "in": "query",
        "description": each.about,
        "required": each.is_needed,
        "schema": dict(each.schema),
    }


def _acting(name: str, action: Action) -> Mapping[str, Any]:
    body = {
        "type": "object",
        "properties": {each.name: _property(each) for each in fields_of(action)},
        "required": ["key"],
        "additionalProperties": False,
    }
    done = {
        "type": "object",
        "properties": {
            "key": {"type": "string"},
            "done": {"type": "string", "description": "What was done."},
            "extra_runs": {**schema_of(Sequence[str]), "description": "The keys of new runs."},
            "would": {**schema_of(Sequence[str]), "description": "With dry_run: what it would do."},
        },
        "required": ["key"],
    }
    return {
        "operationId": name,
        "summary": action.about,
        "description": f"Needs the right to {action.right}.",
        "security": [{"token": []}],
        "requestBody": {"required": True, "content": _json(body)},
        "responses": _responses("It is done.", done, [*_REFUSALS]),
    }


def _property(each: Field) -> Mapping[str, Any]:
    about = f"{each.label}: {each.hint}" if each.hint else each.label
    return {"type": _KINDS.get(each.kind, "string"), "description": f"{about}."}


def _responses(
    about: str, schema: Mapping[str, Any], refusals: Sequence[HTTPStatus]
) -> Mapping[str, Any]:
    error = {"$ref": "#/components/schemas/Error"}
    refused = {
        str(status.value): {"description": _REFUSALS[status], "content": _json(error)}
        for status in refusals
    }
    return {"200": {"description": about, "content": _json(schema)}, **refused}


def _json(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"application/json": {"schema": schema}}


def _about(kind: Any) -> str:  # noqa: ANN401  # a type
    """The first sentence of the docstring of a document, or of what it lists."""
    described = get_args(kind)[0] if get_args(kind) else kind
    return (getdoc(described) or "").partition("\n")[0].replace("``", "")


def schema_of(kind: Any) -> Mapping[str, Any]:  # noqa: ANN401  # a type
    """The JSON schema of what the API makes of a type."""
    if kind in _SIMPLE:
        return {"type": _SIMPLE[kind]}
    match get_origin(kind):
        case None:
            pass
        case origin if origin is UnionType:
            return {"anyOf": [*map(schema_of, get_args(kind))]}
        case origin if issubclass(origin, Mapping):
            return {"type": "object", "additionalProperties": schema_of(get_args(kind)[1])}
        case _:
            return {"type": "array", "items": schema_of(get_args(kind)[0])}
    if not (is_dataclass(kind) or is_typeddict(kind) or hasattr(kind, "_fields")):
        return {}  # anything
    properties = {name: schema_of(each) for name, each in get_type_hints(kind).items()}
    return {"type": "object", "properties": properties, "required": [*properties]}
