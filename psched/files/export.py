"""Writes schedules to a file; ``psched apply`` creates equal schedules from that file.

The order is stable and default values are left out, so that two exports can be compared.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml

from psched.base.errors import InvalidError
from psched.base.texts import visible
from psched.config import Config
from psched.core.columns import decode, payload_limit
from psched.core.definition import parse_row
from psched.core.model import BEING_DELETED, WAITING, Row
from psched.files.plan import non_defaults

_FIRST = ("type", "cron", "timezone", "delay", "data")
"""The fields that are written before the others, in this order."""

_LINE = 100
"""The maximum length of a line in characters; a text that cannot be broken may be longer."""

Documents = Mapping[str | None, Mapping[str, Mapping[str, Any]]]
"""The fields of each schedule: a mapping by label of mappings by key."""


def export(rows: Iterable[Row], settings: Config) -> tuple[Documents, Sequence[str], Sequence[str]]:
    """Collect the declarations from which these schedules can be created again.

    The remarks are on schedules whose status a file cannot declare, and on those that are left out,
    because they are not valid.
    """
    documents: dict[str | None, dict[str, dict[str, Any]]] = {}
    remarks, omitted = list[str](), list[str]()
    for row in sorted(rows, key=lambda row: row.key):
        if row.cron is None or row.status in BEING_DELETED or row.template is not None:
            continue
        try:
            parse_row(row, settings)
            decode("data", row.data or "{}", most=payload_limit(settings.data_limit))
        except InvalidError as error:
            omitted.append(f"{row.key}: left out, because it cannot be understood: {error}")
            continue
        documents.setdefault(row.label, {})[row.key] = _fields(row, settings)
        if row.status != WAITING:
            remarks.append(f"{row.key}: is {row.status}, which a file cannot declare")
    return documents, remarks, omitted


def document_of(row: Row, settings: Config) -> str:
    """The content of a file that declares one schedule, even if its row is invalid."""
    return to_yaml({row.label: {row.key: _fields(row, settings)}})


def _fields(row: Row, settings: Config) -> dict[str, Any]:
    """The fields of a schedule in a file; the most important ones come first."""
    fields = non_defaults(row, settings)
    fields.pop("label", None)
    first = {name: fields[name] for name in _FIRST if name in fields}
    return first | fields


def to_yaml(documents: Documents) -> str:
    """The content of a file: a document for each label; schedules without a label come last."""
    ordered = sorted(documents, key=lambda label: (label is None, label or ""))
    contents = [{"label": label, "schedules": dict(documents[label])} for label in ordered]
    return yaml.dump_all(
        contents,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=_LINE,
        explicit_start=len(contents) > 1,
    )


class _Dumper(yaml.SafeDumper):
    """PyYAML's safe dumper, changed to write multi-line texts as blocks and to write no aliases."""

    def ignore_aliases(self, data: object) -> bool:
        """Ignore aliases: an object that occurs twice is written in full both times."""
        del data
        return True

    def write_double_quoted(self, text: str, split: bool = True) -> None:  # noqa: FBT001, FBT002
        """Write a text in double quotes; its invisible characters become escapes."""
        unicode = self.allow_unicode
        self.allow_unicode = visible(text) == text
        super().write_double_quoted(text, split)
        self.allow_unicode = unicode


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text.strip() else None
    if visible(text, lines=True) != text:
        style = '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)
