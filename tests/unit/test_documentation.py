"""Tests that everything exists that the developers' documentation names."""

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


PAGES = [ROOT / "README.md", ROOT / "bench" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def names(body):
    """The names that the body of a module or class defines; in nested classes: ``Class.name``."""
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


def anchors(page):
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if link.startswith("https://"):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link
