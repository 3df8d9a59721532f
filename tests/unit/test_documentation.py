"""What the documentation for developers names must exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PLACES = [ROOT, ROOT / "psched", *(ROOT / "tests" / each for each in ("unit", "e2e", "process"))]
NAMED = sorted(
    {
        found
        for page in ("architecture.md", "contributing.md")
        for found in re.findall(
            r"`([\w./]+(?:/|\.py|\.lua|\.md|\.yml))(?::([\w.]+))?`",
            (ROOT / "docs" / page).read_text(),
        )
    }
)


def names(body):
    """The names that a module or a class defines; those of a class's body with a dot."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield node.name
            yield from (f"{node.name}.{name}" for name in names(node.body))
        elif isinstance(node, ast.FunctionDef):
            yield node.name


def test_the_packages_are_those_that_there_are():
    page = (ROOT / "docs/architecture.md").read_text()
    table = page.partition("\n| package |")[2].partition("\n\n")[0]
    named = {
        name
        for line in table.splitlines()[2:]
        for name in re.findall(r"`(\w+)`", line.split("|")[1])
    }

    found = {path.stem for path in (ROOT / "psched").iterdir() if path.stem[0] != "_"}
    public = {"clock", "errors", "model", "backends", "py"}
    assert named == found - public


def test_the_life_of_a_row_is_told_in_ten_steps():
    page = (ROOT / "docs/architecture.md").read_text()
    steps = page.partition("in ten steps\n")[2].partition("\n## ")[0]
    assert len(re.findall(r"^\d+\. ", steps, re.MULTILINE)) == 10
    assert len(re.findall(r"`[\w/]+\.py:[\w.]+`", steps)) >= 10


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_what_developers_are_told_to_read_exists(path, name):
    found = [place / path for place in PLACES if (place / path).exists()]
    assert found
    if name:
        assert name in {*names(ast.parse(found[0].read_text()).body)}
