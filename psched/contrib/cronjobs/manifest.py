"""Reads manifests of Kubernetes: YAML or JSON, several documents, lists as kubectl writes them."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from psched.base.errors import ConfigError
from psched.config.document import Loader, line_of, syntax_problem, unreadable
from psched.config.problems import Problem


class Fields(dict[str, Any]):
    """A mapping of a manifest; ``lines`` has the number of the line of each of its keys."""

    lines: Mapping[str, int] = MappingProxyType({})

    def part(self, name: str) -> "Fields":
        """The mapping with this name; an empty one if there is none."""
        found = self.get(name)
        return found if isinstance(found, Fields) else Fields()


def cronjobs_in(content: str, origin: Path) -> Iterator[Fields]:
    """Yield the CronJobs of a manifest; other resources are left out."""
    try:
        loader = Loader(content)
        while loader.check_node():
            yield from _cronjobs(_plain(loader, loader.get_node()))
    except yaml.reader.ReaderError as error:
        problem = unreadable(error, content)
    except yaml.MarkedYAMLError as error:
        problem = syntax_problem(error)
    except RecursionError:
        problem = Problem("nested too deeply")
    else:
        return
    raise ConfigError(f"{origin}:{problem.line or 1}: {problem.text}")


def _cronjobs(found: object) -> Iterator[Fields]:
    if isinstance(found, Fields) and found.get("kind") == "CronJob":
        yield found
    elif isinstance(found, Fields) and isinstance(found.get("items"), list):
        for each in found["items"]:
            yield from _cronjobs(each)


def _plain(loader: Loader, node: yaml.Node | None) -> Any:  # noqa: ANN401  # JSON
    if isinstance(node, yaml.SequenceNode):
        return [_plain(loader, each) for each in node.value]
    if isinstance(node, yaml.MappingNode):
        loader.flatten_mapping(node)
        found = Fields({f"{key.value}": _plain(loader, value) for key, value in node.value})
        found.lines = {f"{key.value}": line_of(key) for key, _ in node.value}
        return found
    try:
        return loader.construct_object(node) if node else None
    except (ValueError, yaml.constructor.ConstructorError):  # such as a number in base 8
        return node.value if node else None
