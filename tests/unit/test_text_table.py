"""Tests of the widths of a table's columns."""

import pytest

from psched.cli.shown import RUNS, SCHEDULES
from psched.cli.text_table import GAP, LINE, Column, widths_of

RUN = {
    "WHEN": "Fri 27 08:12:51",
    "KEY": "report!0123456789abcdef",
    "ATTEMPT": "1",
    "OUTCOME": "finished",
    "FATE": "skipped_paused",
    "TOOK": "305 ms",
    "EXIT": "SIGKILL",
    "HOST": "web1.example.org",
    "REASON": "of 02:30",
}


COLUMNS = {column.heading: column for column in (*SCHEDULES, *RUNS)}


def widths(cells, line=LINE):
    columns = [COLUMNS.get(heading, Column(heading, lambda text, _: text)) for heading in cells]
    found = widths_of(columns, [[*cells], [*cells.values()]], line)
    assert sum(found) + len(GAP) * (len(found) - 1) <= line
    return dict(zip(cells, found, strict=True))


def test_times_are_not_cut():
    assert widths(RUN)["WHEN"] == len(RUN["WHEN"])
    assert widths({**RUN, "KEY": "k" * 90, "REASON": "because " * 50})["WHEN"] == len(RUN["WHEN"])
    for line in range(60, LINE):
        found = widths(RUN, line)
        assert found["WHEN"] == len(RUN["WHEN"])
        assert min(found.values()) > 0


def test_the_reason_is_cut_before_columns_that_are_not_long():
    run = {**RUN, "EXIT": "0", "HOST": "web1", "KEY": "e5!0123456789", "REASON": "because " * 9}
    found = widths(run)
    assert found.pop("REASON") < 24
    assert found == {name: max(len(name), len(run[name])) for name in found}


def test_what_is_much_longer_than_the_rest_is_cut_first():
    found = widths({"KEY": "k" * 200, "STATUS": "waiting", "REASON": "gave up after 3"})
    assert found["REASON"] == len("gave up after 3")


def test_if_there_are_only_times_they_are_cut():
    assert (
        max(widths({"NEXT_TIME": "2030-01-01 00:00:00 UTC", "WHEN": RUN["WHEN"]}, 30).values()) < 20
    )


@pytest.mark.parametrize("line", [100, 20])
def test_a_table_that_fits_is_not_cut(line):
    assert widths({"NAME": "backup", "KIND": "mail"}, line) == {"NAME": 6, "KIND": 4}
