"""A YAML file as keys, values and lines.

Only this module imports PyYAML, and it is itself imported only when there is a file.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import yaml

from psched.config.checking import Given
from psched.config.problems import Problem, failure

_TEXT = "tag:yaml.org,2002:str"
_NULL = "tag:yaml.org,2002:null"
_MERGE = "tag:yaml.org,2002:merge"


class Document(NamedTuple):
    """What a file says.

    Attributes:
        given: its values by their keys. A value that is a mapping is again one of `Given`, three
            levels down: the deepest are those of a type in the settings of a section.
        problems: what it says that can mean nothing, and is therefore not in `given`.
    """

    given: Mapping[str, Given]
    problems: list[Problem]


def parse(content: str, origin: Path) -> Document:
    """Read the content of a file.

    Raises:
        ConfigError: it is not YAML, or no mapping.
    """
    try:
        loader = Loader(content)
        root = loader.get_single_node()
        if root is None or root.tag == _NULL:
            return Document({}, [])
        if isinstance(root, yaml.MappingNode):
            return Document(loader.given(root, levels=4), loader.problems)
        problem = Problem("holds no settings; write each as NAME: VALUE", line=line_of(root))
    except yaml.reader.ReaderError as error:
        line = content.count("\n", 0, error.position) + 1
        problem = Problem("not YAML: a character that is not allowed", line=line)
    except yaml.MarkedYAMLError as error:
        problem = syntax_problem(error)
    except RecursionError:
        problem = Problem("nested too deeply to be a configuration")
    # Raised out here to leave PyYAML's errors behind: they quote what may be a password.
    raise failure([problem], origin)


class Loader(yaml.SafeLoader):
    """PyYAML's safe loader, with lines; it refuses tags and notes doubled keys."""

    def __init__(self, content: str) -> None:
        super().__init__(content)
        self.problems: list[Problem] = []

    def given(self, node: yaml.MappingNode, *, levels: int) -> dict[str, Given]:
        """A mapping whose values that are mappings are read like it, so many levels down."""
        self.flatten_mapping(node)  # what << merges comes first: later keys win
        entries = {}
        for key, value in node.value:
            if key.tag != _TEXT:
                self.problems.append(Problem("a key that is not text", line=line_of(key)))
            elif levels > 1 and isinstance(value, yaml.MappingNode):
                entries[key.value] = Given(self.given(value, levels=levels - 1), line_of(key))
            else:
                try:
                    plain = self.construct_object(value, deep=True)
                    entries[key.value] = Given(plain, line_of(key))
                except (yaml.constructor.ConstructorError, ValueError):
                    self.problems.append(
                        Problem("cannot be read; put it in quotes", key.value, line_of(key))
                    )
        return entries

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """PyYAML's, but for tags."""
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if getattr(event, "tag", None) is not None:
            raise yaml.composer.ComposerError(
                problem="a tag (!) has no meaning here; remove it", problem_mark=event.start_mark
            )
        return super().compose_node(parent, index)

    def compose_mapping_node(self, anchor: dict[str, yaml.Node]) -> yaml.MappingNode:
        """PyYAML's, which also notes doubled keys."""
        node = super().compose_mapping_node(anchor)
        first: dict[str, int] = {}
        for key, _ in node.value:
            # Several << in one mapping are all merged; any other key would hide its double.
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
                continue
            if key.value in first:
                text = f"stands twice; remove this one or that of line {first[key.value]}"
                self.problems.append(Problem(text, key.value, line_of(key)))
            first.setdefault(key.value, line_of(key))
        return node


def line_of(node: yaml.Node) -> int:
    """The line at which it begins, from 1."""
    return node.start_mark.line + 1


def syntax_problem(error: yaml.MarkedYAMLError) -> Problem:
    """What PyYAML has found, without quoting any of it."""
    mark = error.problem_mark or error.context_mark
    # Names are left out, as anything may be taken for one; single characters and <tokens> stay.
    text = re.sub(r" '[^'<][^']+'", "", error.problem or error.context or "")
    return Problem(f"not YAML: {text}", line=mark.line + 1 if mark else None)
