"""The pages about the run history: their examples show what the commands really print.

Each command in a block ``console`` is run, in the service of `support.weekend`. What it prints must
be what the page shows, except for what differs from run to run: durations, seconds, leases, hosts,
users, folders, and the numbers in JSON. A test that fails shows the new output, for the page.
"""

import json
import os
import pwd
import re
import socket
from itertools import takewhile
from pathlib import Path

import pytest

from support.service import services
from support.weekend import Weekend

pytestmark = pytest.mark.extended

ROOT = Path(__file__).parents[2]

PAGES = ("README.md", "docs/history.md", "docs/why.md", "docs/operate.md")

AFTER_A_LOSS = "psched verify"
"""How examples begin that are about a history in which a record is missing."""

OPERATING = ("psched trigger", "psched backfill")
"""How examples begin that need a worker."""

PROMPT = re.compile(r"^ *\$ ", re.MULTILINE)
"""The beginning of an example."""

NAMES = {"web1", "web2", "db1", "ann", "root"} | {
    socket.gethostname(),
    pwd.getpwuid(os.geteuid()).pw_name,
}
"""Hosts and users, of the pages and of this machine."""

PLACEHOLDERS = (
    (r'"/\S*/', '"'),
    (r"\S+-[0-9a-f]{16}\.\d+", "LEASE"),
    (r"![0-9a-z]{16}\b", "!ID"),
    (rf"\b({'|'.join(map(re.escape, sorted(NAMES, key=len, reverse=True)))})\b", "NAME"),
    (r"\b(\d\d:\d\d):\d\d\b", r"\1"),
    (r"\b\d+(\.\d+)? (d|h|min|s|ms|MiB)( \d+ (h|min|s))?\b", "AMOUNT"),
    (r"\b(\d+[dhms])+ late\b", "AMOUNT late"),
    (r"\b[\d,]+ (schedules|instants|runs|pending|unknown)\b", r"NUMBER \1"),
    (r"^unknown: [\d,]+", "unknown: NUMBER"),
)
"""What differs from run to run, and what is compared in its place."""


def examples(page):
    """The commands on a page, each with the lines that it prints there."""
    text = (ROOT / page).read_text()
    found = {}
    for block in re.findall(r"^```console\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        for example in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *lines = example.splitlines()
            found[command] = lines
    assert len(found) == len(PROMPT.findall(text)), (
        f"{page}: an example is in no such block, or twice"
    )
    return found


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """What the examples on each page really print: lines, by the page and the command."""
    folder = tmp_path_factory.mktemp("weekend")
    with services(folder) as make:
        weekend = Weekend(make(f"sqlite:///{folder}/psched.db"))
        weekend.happen()
        read = [(page, command) for page in PAGES for command in examples(page)]
        before = [each for each in read if not each[1].startswith((AFTER_A_LOSS, *OPERATING))]
        after = [each for each in read if each[1].startswith(AFTER_A_LOSS)]
        changing = [each for each in read if each[1].startswith(OPERATING)]
        outputs = [*weekend.run(*(command for _, command in before))]
        weekend.forget_sunday()
        outputs += weekend.run(*(command for _, command in after))
        outputs += weekend.operate(*(command for _, command in changing))
        commands = [*before, *after, *changing]
        found = {page: {} for page in PAGES}
        for (page, command), output in zip(commands, outputs, strict=True):
            found[page][command] = output.splitlines()
        yield found


def plain(text):
    """A text with placeholders."""
    for pattern, placeholder in PLACEHOLDERS:
        text = re.sub(pattern, placeholder, text)
    return text


def cells(line):
    """The cells of a line of a table. Any other line has one cell."""
    return re.split(r" {2,}", line.rstrip()) if line[:1].strip() else [line]


def shape(value):
    """A JSON value with placeholders; an object as a list of pairs, to compare their order."""
    if isinstance(value, dict):
        return [(name, shape(each)) for name, each in value.items()]
    if isinstance(value, list):
        return [shape(each) for each in value]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "NUMBER"
    return plain(value) if isinstance(value, str) else value


def is_same(shown, real):
    """Whether two cells say the same; if one is cut, as far as it goes."""
    length = min((len(each) - 1 for each in (shown, real) if each.endswith("…")), default=None)
    return plain(shown[:length]) == plain(real[:length])


def differences(shown, real):
    """The lines of a page that differ from what a command prints, as pairs."""
    lines = max(len(shown), len(real))
    padded = (each + [""] * (lines - len(each)) for each in (shown, real))
    for one, other in zip(*padded, strict=True):
        if one.startswith("{") and other.startswith("{"):
            same = shape(json.loads(one)) == shape(json.loads(other))
        else:
            left, right = cells(one), cells(other)
            same = len(left) == len(right) and all(map(is_same, left, right))
        if not same:
            yield one, other


def test_no_other_page_has_examples():
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    having = {str(page.relative_to(ROOT)) for page in pages if PROMPT.search(page.read_text())}
    assert having == {*PAGES}


@pytest.mark.parametrize("page", PAGES)
def test_each_example_is_what_the_command_prints(page, printed):
    for command, shown in examples(page).items():
        real = printed[page][command]
        assert [*differences(shown, real)] == [], "\n".join([f"$ {command}", *real])


@pytest.mark.parametrize("page", PAGES)
def test_the_tables_of_the_examples_are_straight(page):
    for shown in examples(page).values():
        for number, head in enumerate(shown):
            if re.match(r"(WHEN|KEY)  ", head):
                rows = takewhile(lambda row: "  " in row, shown[number + 1 :])
                starts = {match.start() for match in re.finditer(r"\S+", head)}
                for row in rows:
                    if row[0] != " ":
                        assert {m.end() for m in re.finditer(r" {2,}", row)} <= starts, row


def test_what_differs_is_found():
    shown = ["WHEN             TOOK    REASON", "Mon 23 02:35:12  41.3 s  of 02:30 and mor…"]
    same = ["WHEN             TOOK   REASON", "Mon 23 02:35:31  11 ms  of 02:30 and more"]
    assert [*differences(shown, same)] == []
    for old, new in {
        "TOOK ": "TIME ",
        "02:35:31": "02:36:31",
        "11 ms": "11",
        "and more": "or more",
        "Mon 23": "Tue 24",
    }.items():
        assert [*differences(shown, [line.replace(old, new) for line in same])]
    assert [*differences(shown, same[:1])]
    assert [*differences(shown, [*same, "1 record"])]
    shown = ['{"took": 1.5, "host": "web1", "span": {"from": 1, "to": null}}']
    assert [
        *differences(shown, ['{"took": 2, "host": "root", "span": {"from": 3, "to": null}}'])
    ] == []
    assert [*differences(shown, ['{"took": 2, "host": "web1", "span": {"since": 3, "to": null}}'])]
    assert [*differences(shown, ['{"host": "web1", "took": 2, "span": {"from": 3, "to": null}}'])]
    assert [
        *differences(shown, ['{"took": null, "host": "web1", "span": {"from": 1, "to": null}}'])
    ]
