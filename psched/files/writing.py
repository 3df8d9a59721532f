"""Schedules as a file that declares them: the inverse of reading it and applying it.

The order is stable and defaults are left out, so that two exports can be compared.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml

from psched.base.errors import InvalidError
from psched.base.texts import visible
from psched.config import Config
from psched.core.columns import annotation, decode, payload_limit
from psched.core.definition import parse_row
from psched.core.model import DELETING, WAITING, Row
from psched.files.plan import differing

_FIRST = ("type", "cron", "timezone", "delay", "data")
"""Fields, in the order in which a person tells them; others follow."""

_LINE = 100
"""Columns, as far as a text can be broken."""

Documents = Mapping[str | None, Mapping[str, Mapping[str, Any]]]
"""Labels, keys, and fields."""


def export(rows: Iterable[Row], settings: Config) -> tuple[Documents, Sequence[str], Sequence[str]]:
    """What a file would have to declare for these schedules to be there.

    Args:
        rows: the schedules; what runs only once is none of a file's matters.
        settings: the installation's.

    Returns:
        That; what the file cannot say, for people; and what had to be left out.
    """
    documents: dict[str | None, dict[str, dict[str, Any]]] = {}
    remarks, omitted = list[str](), list[str]()
    for row in sorted(rows, key=lambda row: row.key):
        if row.cron is None or row.status == DELETING:
            continue
        try:
            parse_row(row, settings)
            decode("data", row.data or "{}", most=payload_limit(settings.data_limit))
        except InvalidError as error:
            omitted.append(f"{row.key}: left out, for it cannot be understood: {error}")
            continue
        fields = differing(row, settings)
        label = annotation(row, "label")
        fields.pop("label", None)
        first = {name: fields[name] for name in _FIRST if name in fields}
        documents.setdefault(label, {})[row.key] = first | fields
        if row.status != WAITING:
            remarks.append(f"{row.key}: is {row.status}, which no file can say")
    return documents, remarks, omitted


def text_of(documents: Documents) -> str:
    """A file's content: a document for each label, the one of nobody's schedules last."""
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
    """PyYAML's safe dumper; texts of several lines are written as such, and nothing is shared."""

    def ignore_aliases(self, data: object) -> bool:
        """Write what occurs twice out twice."""
        del data
        return True

    def write_double_quoted(self, text: str, split: bool = True) -> None:  # noqa: FBT001, FBT002
        """Write what cannot be seen as escapes, of which only this style has some."""
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
