"""Tests that the documentation names what exists: modules, links, options, outcomes, codes."""

import ast
import re
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import is_typeddict

import click
import pytest

import psched
import psched.application
from psched.cli.commands import load
from psched.cli.commands import psched as program
from psched.cli.shown import RUNS
from psched.core.history.answer import Code, State
from psched.core.history.records import Fate, Outcome, RunRecord
from psched.core.store_protocol import CAN_LACK
from psched.reports.findings import Kind

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


WRITTEN = [
    page
    for page in (ROOT / "docs").rglob("*.md")
    if page.name not in {"settings.md", "commands.md"}  # bin/settings writes these two
]


def test_the_documentation_is_short():
    assert sum(page.stat().st_size for page in WRITTEN) <= 220 * 1024


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.name)
def test_a_page_is_short(page):
    assert page.stat().st_size < 14_000


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


def table(page, heading):
    """The cells of a table on a page, without the row of its headings."""
    text = (ROOT / "docs" / page).read_text()
    rows = text.partition(f"\n| {heading} |")[2].partition("\n\n")[0].splitlines()[2:]
    assert rows, heading
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]


@pytest.mark.parametrize(
    ("pages", "heading", "known"),
    [
        (["history.md"], "outcome", [*Outcome]),
        (["history.md"], "fate", [*Fate]),
        (["why.md"], "code", [*Code]),
        (["why.md", "contributing.md"], "violation", [*Kind]),
        (["table.md"], "column of a run", [each.name for each in fields(RunRecord)]),
    ],
)
def test_a_table_explains_each_name_once(pages, heading, known):
    rows = [row for page in pages for row in table(page, heading)]
    explained = [name for row in rows for name in re.findall(r"`(\w+)`", row[0])]
    assert sorted(explained) == sorted(known)


def test_the_columns_of_the_history_are_explained_in_their_order():
    assert [row[0] for row in table("history.md", "column")] == [each.heading for each in RUNS]


def test_the_states_of_an_answer_are_those_that_there_are():
    named = {state for row in table("why.md", "code") for state in row[1].split(", ")}
    assert named == {*State}


def test_each_cell_about_a_peer_has_a_source_and_the_date_when_it_was_read():
    page = (ROOT / "docs/comparison.md").read_text()
    sources = {*re.findall(r"^\[([\w-]+)\]: https://", page, re.MULTILINE)}
    tables = re.findall(r"^\| \| psched \|.*\n\|-.*\n((?:\|.*\n)+)", page, re.MULTILINE)
    assert len(tables) == 2
    cells = [
        cell.strip()
        for rows in tables
        for row in rows.splitlines()
        for cell in row.strip("|").split(" | ")[2:]
    ]
    assert len(cells) > 70
    linked = {name for cell in cells for name in re.findall(r"\]\[([\w-]+)\]", cell)}
    assert linked == sources
    for cell in cells:
        assert re.search(r"\]\[[\w-]+\].* \(20\d\d-[01]\d-[0-3]\d\)$", cell), cell


def test_the_page_of_own_stores_names_all_that_a_store_can_leave_out():
    page = (ROOT / "docs/contributing.md").read_text()
    named = {*re.findall(r"^\| `(\w+)(?:\(.*\))?` \|", page, re.MULTILINE)}
    assert len(CAN_LACK) > 10
    assert {*CAN_LACK} - named == set()


OF_EVERY_COMMAND = {"--help", "--config", "--environment", "--database", "--table"}


@pytest.mark.parametrize("command", sorted(program.commands))
def test_the_page_of_commands_names_the_options_of_each(command):
    options = {
        parameter.opts[-1]
        for parameter in load(command).params
        if isinstance(parameter, click.Option)
    }
    page = (ROOT / "docs/commands.md").read_text()
    section = page.partition(f"## `psched {command}`\n")[2].partition("\n## ")[0]
    named = {*re.findall(r"(?:^\| `|, )(--[a-z-]+|-\w)", section, re.MULTILINE)}
    assert options - OF_EVERY_COMMAND <= named


PUBLIC = [
    each
    for module in (psched, psched.application)
    for each in (getattr(module, name) for name in module.__all__)
    if isinstance(each, type) and not issubclass(each, BaseException)
]


def is_a_value(public):
    """Whether the objects of a class do not change."""
    frozen = is_dataclass(public) and public.__dataclass_params__.frozen
    return frozen or issubclass(public, tuple) or is_typeddict(public) or public is psched.Row


@pytest.mark.parametrize("public", PUBLIC, ids=lambda each: each.__name__)
def test_a_public_class_says_which_threads_can_use_it(public):
    assert is_a_value(public) or re.search(r"\bthreads?\b", public.__doc__)
