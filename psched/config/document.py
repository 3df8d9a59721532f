"""Reads a YAML file: its keys, its values, and the line number of each key.

This is the only module of the package that imports PyYAML. Because importing PyYAML takes time,
`reader` imports this module only if there is a configuration file.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import yaml

from psched.config.kinds import RawValue
from psched.config.problems import Problem, config_error

_TEXT = "tag:yaml.org,2002:str"
_NULL = "tag:yaml.org,2002:null"
_MERGE = "tag:yaml.org,2002:merge"


MOST_ADDED = 250_000
"""The largest number of values that aliases (*) and merges (<<) are allowed to add to the values
that are written in a file. A text counts as one value, plus one for each full hundred of its
characters."""


_ENDLESS = 10**12
"""A node that contains itself counts as this many values. If the count of another node is larger,
it is reduced to this number."""


class Document(NamedTuple):
    """The values of a configuration file by their keys, and the problems of single keys and values.

    Down to the fourth level of nesting, each value is a `RawValue`, because the deepest settings
    are on that level: section, ``types``, name of a type, setting.
    """

    given: Mapping[str, RawValue]
    problems: list[Problem]


def parse(content: str, origin: Path) -> Document:
    """Parse a configuration file. An empty one is valid, and contains no settings."""
    try:
        loader = Loader(content)
        root = loader.get_single_node()
        if root is None or root.tag == _NULL:
            return Document({}, [])
        if isinstance(root, yaml.MappingNode):
            return Document(loader.given(root, levels=4), loader.problems)
        problem = Problem("holds no settings; write each as NAME: VALUE", line=line_of(root))
    except yaml.reader.ReaderError as error:
        problem = unreadable(error, content)
    except yaml.MarkedYAMLError as error:
        problem = syntax_problem(error)
    except RecursionError:
        problem = Problem("nested too deeply to be a configuration")
    # The error is raised outside the handlers, so that PyYAML's error is not chained to it, because
    # PyYAML's error quotes the file, and the file can contain a password.
    raise config_error([problem], origin)


class ExpansionError(yaml.MarkedYAMLError):
    """The aliases and merges of a file expand to too many values."""


class _OtherBaseError(ValueError):
    def __init__(self) -> None:
        super().__init__("a number in base 8 or 60; write it in base 10, or put text in quotes")


class Loader(yaml.SafeLoader):
    """PyYAML's safe loader, extended: it returns each value with the line number of its key.

    The loader collects problems, such as duplicate keys, in `problems`; a number such as 0660 or
    22:30, which YAML 1.1 reads in base 8 or 60, is one. It raises an error for a tag (!), and for
    aliases that expand to too many values.
    """

    def __init__(self, content: str) -> None:
        super().__init__(content)
        self.problems: list[Problem] = []
        self._left = MOST_ADDED
        self._has_alias = False

    def given(self, node: yaml.MappingNode, *, levels: int) -> dict[str, RawValue]:
        """Read the values of a mapping; below `levels` levels, mappings have no line numbers."""
        self.flatten_mapping(node)  # puts merged keys (<<) first, so that own keys overwrite them
        entries = {}
        for key, value in node.value:
            if key.tag != _TEXT:
                self.problems.append(
                    Problem("a key that is not text; put it in quotes", line=line_of(key))
                )
            elif levels > 1 and isinstance(value, yaml.MappingNode):
                entries[key.value] = RawValue(self.given(value, levels=levels - 1), line_of(key))
            else:
                try:
                    plain = self.construct_object(value, deep=True)
                    entries[key.value] = RawValue(plain, line_of(key))
                except _OtherBaseError as error:
                    self.problems.append(Problem(str(error), key.value, line_of(key)))
                except (yaml.constructor.ConstructorError, ValueError, OverflowError):
                    self.problems.append(
                        Problem("cannot be read; put it in quotes", key.value, line_of(key))
                    )
        return entries

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """A whole number; refuses one in base 8 or 60."""
        if re.match(r"[-+]?0[0-9_]|.*:", node.value):
            raise _OtherBaseError
        return int(super().construct_yaml_int(node))

    def construct_yaml_float(self, node: yaml.ScalarNode) -> float:
        """A number; refuses one in base 60."""
        if ":" in node.value:
            raise _OtherBaseError
        return float(super().construct_yaml_float(node))

    def compose_document(self) -> yaml.Node | None:
        """Refuse a file whose aliases expand to too many values, before they use up the memory."""
        root = super().compose_document()
        if root is None or not self._has_alias:
            return root
        sizes: dict[yaml.Node, int] = {}
        whole = _expanded(root, sizes)
        written = sum(map(_weight, sizes))
        if whole - written > self._left:
            text = (
                f"aliases (*) and merges (<<) add more than {MOST_ADDED} values to what is written"
                " here; use fewer of them"
            )
            raise ExpansionError(problem=text, problem_mark=_largest(root, sizes, self._left))
        self._left -= whole - written
        return root

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Refuse a node with a tag (!)."""
        event = self.peek_event()  # type: ignore[no-untyped-call]
        self._has_alias = self._has_alias or isinstance(event, yaml.AliasEvent)
        if getattr(event, "tag", None) is not None:
            raise yaml.composer.ComposerError(
                problem="a tag (!) has no meaning here; remove it", problem_mark=event.start_mark
            )
        return super().compose_node(parent, index)

    def compose_mapping_node(self, anchor: dict[str, yaml.Node]) -> yaml.MappingNode:
        """Note each duplicate key in `problems`."""
        node = super().compose_mapping_node(anchor)
        first: dict[str, int] = {}
        for key, _ in node.value:
            # A second merge key (<<) is not reported, because PyYAML applies all merge keys. Any
            # other duplicate key is reported, because PyYAML would silently use only its last
            # value.
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
                continue
            if key.value in first:
                text = f"appears twice; remove this one or the one in line {first[key.value]}"
                self.problems.append(Problem(text, key.value, line_of(key)))
            first.setdefault(key.value, line_of(key))
        return node


for _kind in ("int", "float"):
    Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", getattr(Loader, f"construct_yaml_{_kind}"))


def unreadable(error: yaml.reader.ReaderError, content: str) -> Problem:
    """Return the problem to report for a character that YAML does not allow."""
    line = content.count("\n", 0, error.position) + 1
    code = ord(content[error.position])
    return Problem(f"not YAML: the character U+{code:04X} is not allowed; remove it", line=line)


def line_of(node: yaml.Node) -> int:
    """The number of the line on which a node begins; the first line has the number 1."""
    return node.start_mark.line + 1


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [each for pair in node.value for each in pair]
    return node.value if isinstance(node, yaml.SequenceNode) else []


def _weight(node: yaml.Node) -> int:
    return 1 + len(node.value) // 100 if isinstance(node, yaml.ScalarNode) else 1


def _expanded(node: yaml.Node, sizes: dict[yaml.Node, int]) -> int:
    """Count the values that a node expands to, and store the counts of all nodes in ``sizes``."""
    if (known := sizes.get(node)) is not None:
        return known
    sizes[node] = _ENDLESS  # returned by the recursion below if the node contains itself
    size = _weight(node) + sum(_expanded(child, sizes) for child in _children(node))
    sizes[node] = min(size, _ENDLESS)
    return sizes[node]


def _largest(node: yaml.Node, sizes: Mapping[yaml.Node, int], most: int) -> yaml.Mark:
    """Return the position of the innermost node that expands to more than ``most`` values."""
    seen = set[yaml.Node]()
    while node not in seen:
        seen.add(node)
        node = next((each for each in _children(node) if sizes[each] > most), node)
    return node.start_mark


def syntax_problem(error: yaml.MarkedYAMLError) -> Problem:
    """Convert an error of PyYAML to a problem. The problem's text quotes no name from the file."""
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else None
    if isinstance(error, ExpansionError):
        return Problem(error.problem or "", line=line)
    # Names in quotes are removed from PyYAML's text, because a name can be any text of the file,
    # even a password. Quoted single characters and <tokens> are kept, because they reveal nothing.
    text = re.sub(r" '[^'<][^']+'", "", error.problem or error.context or "")
    return Problem(f"not YAML: {text}", line=line)
