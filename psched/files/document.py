"""Reads the YAML files in which schedules are declared; every mistake is reported with its line.

A file holds one or several documents. Each document has a label, the owner of its schedules::

    label: reports
    schedules:
      nightly:
        type: exec
        cron: "30 2 * * *"
        data: {command: [report, --all]}

At the top of a document, psched ignores keys that begin with ``x-``: they may hold YAML anchors.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Protocol, TypeVar

import yaml

from psched.base.errors import ConfigError, InvalidError
from psched.config import Config
from psched.config.document import Loader, line_of, syntax_problem, unreadable
from psched.config.kinds import RawValue
from psched.core.declare import FIELDS, describe
from psched.core.model import Row
from psched.triggers.zone import find_zone

T = TypeVar("T")


class Track(Protocol):
    """A function that passes items on, and shows how many of them have been passed on.

    If the items have a length, it is the number of all items.
    """

    def __call__(self, items: Iterable[T], what: str, /) -> Iterable[T]:
        """Yield the items; ``what`` names the work that the caller does with them."""
        ...


def untracked(items: Iterable[T], _what: str, /) -> Iterable[T]:
    """Return the items, and show nothing."""
    return items


_FIELDS = tuple(name for name in FIELDS if name != "label")
"""The fields of a schedule in a file, without ``label``, which belongs to the whole document."""

_SUFFIXES = (".yml", ".yaml")

_LEVELS = 3
"""The levels of a document for which line numbers are stored: the document, its schedules, and the
schedules' fields."""


@dataclass(frozen=True, slots=True)
class Document:
    """The schedules that files declare for one label."""

    label: str | None
    schedules: list[dict[str, Any]] = field(default_factory=list)  # ``key`` and the fields
    rows: dict[str, Row] = field(default_factory=dict)  # made of `schedules`, by key


class Reader:
    """Reads files, and collects all mistakes in them.

    With a ``label``, documents may have none, and none other. Users' triggers are tried from
    ``now`` on. ``track`` shows how many schedules have been read.
    """

    def __init__(
        self,
        settings: Config,
        label: str | None = None,
        *,
        now: Callable[[], float],
        track: Track = untracked,
    ) -> None:
        self._settings = settings
        self._now = now
        self._label = label
        self._track = track
        self._documents: dict[str | None, Document] = {}
        self._places: dict[str, str] = {}
        self._problems: list[tuple[str, int, str]] = []

    def read(self, paths: Iterable[Path]) -> Sequence[Document]:
        """Read files, and the YAML files in folders; returns one document for each label."""
        seen = set[Path]()
        for path in paths:
            for file in self._files(path):
                if file.resolve() in seen:
                    continue
                seen.add(file.resolve())
                try:
                    self.read_text(file.read_text(encoding="utf-8-sig"), file)
                except OSError as error:
                    self._refuse(file, None, f"cannot be read: {error.strerror}")
                except UnicodeDecodeError:
                    self._refuse(file, None, "not UTF-8 text")
        return self.documents()

    def read_text(self, content: str, origin: Path) -> None:
        """Read the content of one file; a later call of `documents` returns its schedules."""
        try:
            loader = _loader_of(content)
        except yaml.reader.ReaderError as error:
            problem = unreadable(error, content)
            self._refuse(origin, problem.line, problem.text)
            return
        try:
            roots = list(loader.roots())
            for root in roots:
                self._read_document(loader, root, origin)
        except yaml.MarkedYAMLError as error:
            problem = syntax_problem(error)
            is_alias = "alias" in (error.context or "")
            hint = "; put a value that begins with * in quotes" if is_alias else ""
            self._refuse(origin, problem.line, problem.text + hint)
        except RecursionError:
            self._refuse(origin, None, "nested too deeply")
        else:
            if not roots:
                self._refuse(origin, None, "is empty; write label: and schedules:")
        for problem in loader.problems:
            said = ": ".join(filter(None, (problem.key, problem.text)))
            self._refuse(origin, problem.line, said)

    def documents(self) -> Sequence[Document]:
        """All schedules that were read, as one document for each label."""
        if self._problems:
            in_order = sorted(dict.fromkeys(self._problems), key=lambda problem: problem[:2])
            raise ConfigError("\n".join(text for _, _, text in in_order))
        return list(self._documents.values())

    def _files(self, path: Path) -> Sequence[Path]:
        if not path.is_dir():
            return [path]
        found = sorted(
            file
            for file in path.iterdir()
            if file.suffix in _SUFFIXES and not file.name.startswith(".")
        )
        if not found:
            self._refuse(path, None, f"has no file that ends with {' or '.join(_SUFFIXES)}")
        return found

    def _read_document(self, loader: "_SchedulesLoader", root: yaml.Node, origin: Path) -> None:
        line = line_of(root)
        if not isinstance(root, yaml.MappingNode):
            self._refuse(origin, line, "has no schedules; write label: and schedules:")
            return
        top = loader.given(root, levels=_LEVELS)
        for name, given in top.items():
            if name not in {"label", "schedules"} and not name.startswith("x-"):
                text = f"{name}: is not label or schedules; a key for anchors begins with x-"
                self._refuse(origin, given.line, text)
        schedules = top.get("schedules", RawValue(None, line))
        if not isinstance(schedules.value, Mapping):
            text = "schedules: must be a mapping from keys to fields, or {} for none"
            self._refuse(origin, schedules.line, text)
            return
        known, label = self._label_of(top.get("label"), origin, line)
        if not known:
            return
        document = self._documents.setdefault(label, Document(label))
        for key, given in self._track(schedules.value.items(), f"reading {origin.name}"):
            self._read_schedule(document, key, given, origin)

    def _label_of(self, given: RawValue | None, origin: Path, line: int) -> tuple[bool, str | None]:
        """Return whether a document's label is known, and the label; note mistakes in the label."""
        if given is None:
            if self._label is None:
                text = "label: is missing; write the owner's name, or null for none; or use --label"
                self._refuse(origin, line, text)
            return self._label is not None, self._label
        label = given.value
        if label is None or isinstance(label, str):
            if self._label not in {None, label}:
                text = f"label: is {label!r}, but --label is {self._label!r}"
                self._refuse(origin, given.line, text)
            return True, label
        self._refuse(origin, given.line, "label: must be a text; put it in quotes")
        return False, None

    def _read_schedule(self, document: Document, key: str, given: RawValue, origin: Path) -> None:
        place = f"{origin}:{given.line}"
        if self._places.setdefault(key, place) != place:
            self._refuse(origin, given.line, f"{key}: is declared in {self._places[key]} as well")
            return
        if not isinstance(given.value, Mapping):
            text = f"{key}: must be a mapping of fields, which are {', '.join(_FIELDS)}"
            self._refuse(origin, given.line, text)
            return
        lines = {name: each.line for name, each in given.value.items()}
        fields = {name: each.value for name, each in given.value.items()}
        unknown = [name for name in fields if name not in _FIELDS]
        for name in unknown:
            self._refuse(origin, lines[name], f"{key}: {_unknown(name)}")
            del fields[name]
        row, errors = self._describe(key, fields, document.label)
        for error in errors:
            line = lines.get(error.field, given.line)
            self._refuse(origin, line, f"{key}: {error.field}: {error.problem}")
        if fields.get("cron") is None and not unknown:
            text = f"{key}: cron: is missing; to run something only once, use push"
            self._refuse(origin, given.line, text)
        if row is None:
            return
        document.schedules.append({"key": key, **fields})
        document.rows[key] = row

    def _describe(
        self, key: str, fields: Mapping[str, Any], label: str | None
    ) -> tuple[Row | None, Sequence[InvalidError]]:
        """Return a schedule's row, or what is wrong with its fields.

        `describe` raises the first error. To find the others, the wrong field is left out.
        """
        left, errors = dict(fields), list[InvalidError]()
        while True:
            try:
                if left.get("timezone") == "":
                    find_zone("")  # refuses it: an empty name is a value that somebody has lost
                row = describe(key, {**left, "label": label}, self._settings, self._now)
            except InvalidError as error:
                # A later error of no given field may exist only because a field was left out.
                if not errors or error.field in left:
                    errors.append(error)
                if left.pop(error.field, None) is None:
                    return None, errors
            else:
                return (None if errors else row), errors

    def _refuse(self, origin: Path, line: int | None, text: str) -> None:
        place = f"{origin}" if line is None else f"{origin}:{line}"
        shown = "".join(c if c.isprintable() else "?" for c in f"{place}: {text}")
        self._problems.append((str(origin), line or 0, shown))


class _SchedulesLoader(Loader):
    """The loader of configurations, which also reads several documents."""

    def roots(self) -> Iterator[yaml.Node]:
        """The root nodes of the documents that are not empty."""
        while self.check_node():
            node = self.get_node()
            if node is not None and node.tag != "tag:yaml.org,2002:null":
                yield node


class _ParsedLoader(_SchedulesLoader):
    """A `_SchedulesLoader` whose text libyaml has parsed, which is ten times as fast as PyYAML.

    libyaml only parses the text. PyYAML builds the nodes, because libyaml builds them recursively
    and would crash on a text that is nested too deeply.
    """

    def __init__(self, events: Iterable[yaml.Event]) -> None:
        super().__init__("")
        self._events = deque(events)

    def check_event(self, *kinds: Any) -> bool:  # noqa: ANN401  # as PyYAML declares it
        """Whether there is another event, of one of these kinds if any are given."""
        return bool(self._events) and (not kinds or isinstance(self._events[0], kinds))

    def peek_event(self) -> yaml.Event | None:
        """The next event; None if there is none."""
        return self._events[0] if self._events else None

    def get_event(self) -> yaml.Event | None:
        """Remove the next event, and return it; None if there is none."""
        return self._events.popleft() if self._events else None


def _loader_of(content: str) -> _SchedulesLoader:
    """Return a loader of a text: the fast one if libyaml is installed and finds no mistake.

    libyaml accepts tabs where PyYAML refuses them. A text with tabs is left to PyYAML, so that all
    hosts accept the same files.
    """
    with suppress(AttributeError, yaml.YAMLError):
        if "\t" in content:
            return _SchedulesLoader(content)
        return _ParsedLoader(yaml.parse(content, yaml.CSafeLoader))
    return _SchedulesLoader(content)  # finds the mistake again, and describes it better


def _unknown(name: str) -> str:
    if name == "label":
        return "label: belongs at the top of a document, for all its schedules"
    if near := get_close_matches(name, _FIELDS, 1):
        return f"{name}: is not a field of a schedule; did you mean {near[0]}?"
    return f"{name}: is not a field of a schedule; these are {', '.join(_FIELDS)}"
