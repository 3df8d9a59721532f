"""Tests that shorthands for intervals, times and users' triggers are converted to columns."""

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest

from psched import config
from psched.base.errors import InvalidError
from psched.core.declare import declare, declare_all, expand_shorthands, redeclare
from psched.core.model import Row

SETTINGS = config.from_mapping({"url": "sqlite:///unused.db"})
NOON = 1_800_014_400
"""2027-01-15T12:00:00Z."""
HOUR, DAY = 3600, 86_400


class Plain:
    """A trigger that fires every hour, on the hour."""

    def next_at(self, after):
        return (after // HOUR + 1) * HOUR


@dataclass
class Gaps(Plain):
    """A trigger that is a dataclass, so psched can read an instance's arguments."""

    gap: int
    name: str = "é"
    asked: int = field(default=0, init=False)

    def next_at(self, after):
        self.asked += 1
        return super().next_at(after) + self.gap


HERE = Plain.__module__


def declared(key="k", **fields):
    return declare(key, fields, SETTINGS, lambda: NOON)


class TestEvery:
    def test_its_times_lie_where_the_key_wants_them(self):
        row = declared(every=HOUR)
        offset = int(re.fullmatch(r"@every 3600 \+(\d+)", row.cron)[1])
        assert row.next_time % HOUR == offset
        assert NOON <= row.next_time < NOON + HOUR
        assert row == declared(every=timedelta(hours=1))

    def test_what_is_declared_again_is_the_same_whenever_that_is(self):
        later = declare("k", {"every": HOUR}, SETTINGS, lambda: NOON + 12_345)
        assert later.cron == declared(every=HOUR).cron

    def test_many_keys_are_spread_over_the_interval(self):
        keys = [{"key": f"page {n}", "every": HOUR} for n in range(600)]
        rows = declare_all(keys, SETTINGS, lambda: NOON)
        tenths = [(row.next_time - NOON) * 10 // HOUR for row in rows]
        assert all(30 <= tenths.count(tenth) <= 95 for tenth in range(10))

    def test_it_neither_drifts_nor_follows_a_late_run(self):
        row = declared(every=7)
        assert declare("k", {"cron": row.cron, "next_time": NOON + 10**6}, SETTINGS, None).cron
        first = declare("k", {"cron": row.cron, "next_time": NOON + 10**6}, SETTINGS, None)
        assert (first.next_time - row.next_time) % 7 == 0

    def test_a_start_anchors_it(self):
        start = datetime(2027, 1, 15, 12, 0, 5, tzinfo=UTC)
        row = declared(every=HOUR, next_time=start)
        assert (row.cron, row.next_time) == ("@every 3600 +5", NOON + 5)

    def test_aligned_it_runs_on_the_hour(self):
        row = declared(every=HOUR, align=True)
        assert (row.cron, row.next_time) == ("@every 3600", NOON)
        assert declared(every=HOUR, align=False) == declared(every=HOUR)

    @pytest.mark.parametrize(
        "every",
        [0, -5, 1.5, 90.0, True, "90", 10**9, timedelta(0), timedelta(seconds=1.5), timedelta.max],
    )
    def test_what_is_no_interval_is_refused(self, every):
        with pytest.raises(InvalidError, match=r"^every: must be whole seconds from 1 to"):
            declared(every=every)

    @pytest.mark.parametrize(
        ("every", "told"),
        [("1h30m", "'1h30m'; write 90m"), ("2 weeks", "'2 weeks'; write 14d"), ("99w", "'99w'")],
    )
    def test_an_interval_with_several_units_is_refused_with_the_one_to_write(self, every, told):
        with pytest.raises(InvalidError, match=rf"^every: .* not {told}$"):
            declared(every=every)

    def test_a_change_of_the_interval_sets_the_next_occurrence_anew(self):
        row = declared(cron="@daily")
        changed = redeclare(row, {"every": HOUR}, SETTINGS, lambda: NOON + 1)
        assert changed.cron == declared(every=HOUR).cron
        assert NOON < changed.next_time <= NOON + HOUR + 1
        assert redeclare(row, {"every": None, "delay": 5}, SETTINGS, None).cron == "@daily"


class TestAt:
    @pytest.mark.parametrize("at", [NOON + DAY, datetime(2027, 1, 16, 12, tzinfo=UTC)])
    def test_it_runs_once_then(self, at):
        row = declared(at=at, delay=5)
        assert (row.cron, row.next_time, row.next_run_time) == (None, NOON + DAY, NOON + DAY + 5)

    def test_a_schedule_becomes_one_that_runs_once(self):
        row = redeclare(declared(cron="@daily"), {"at": NOON + 9}, SETTINGS, None)
        assert (row.cron, row.next_time) == (None, NOON + 9)

    def test_a_datetime_without_a_zone_is_refused_with_the_mend(self):
        with pytest.raises(InvalidError, match=r"^at: is a datetime without a zone; give it one: "):
            declared(at=datetime(2027, 1, 15, 12))  # noqa: DTZ001  # that is it


class TestTrigger:
    @pytest.mark.parametrize(
        ("given", "text"),
        [
            (Plain, f"@call {HERE}:Plain"),
            ((Plain, {}), f"@call {HERE}:Plain"),
            (f"{HERE}:Plain", f"@call {HERE}:Plain"),
            ((Gaps, {"name": "x", "gap": 9}), f'@call {HERE}:Gaps {{"gap":9,"name":"x"}}'),
            ([f"{HERE}:Gaps", {"gap": 9}], f'@call {HERE}:Gaps {{"gap":9}}'),
            (Gaps(9), f'@call {HERE}:Gaps {{"gap":9,"name":"\\u00e9"}}'),
        ],
    )
    def test_it_is_named_by_where_it_can_be_imported_from(self, given, text):
        assert expand_shorthands("k", {"trigger": given}) == {"cron": text}

    @pytest.mark.parametrize(
        "given",
        [
            5, Plain(), (Plain,), (Plain, {}, 1), (Plain, [1]), (Plain, {"a": {1}}),
            (Plain, {"a": float("nan")}), lambda after: after + 1, type("Local", (), {}),
            type("Main", (), {"__module__": "__main__"}),
        ],
    )  # fmt: skip
    def test_what_another_process_cannot_make_is_refused(self, given):
        with pytest.raises(InvalidError, match=r"^(trigger|cron): "):
            declared(trigger=given)

    def test_a_class_that_answers_wrongly_is_not_declared(self, tmp_path):
        (tmp_path / "psched_wrong.py").write_text(
            "class Wrong:\n    def next_at(self, after):\n        return after - 1\n"
        )
        settings = SETTINGS.with_settings(load_path=[str(tmp_path)])
        wrong = {"trigger": "psched_wrong:Wrong"}
        with pytest.raises(InvalidError, match="which is not later"):
            declare("k", wrong, settings, lambda: NOON)
        running = Row(key="k", cron="@daily", next_time=NOON, owner="w", fence=1, attempt=1)
        with pytest.raises(InvalidError, match="which is not later"):
            redeclare(running, wrong, settings, lambda: NOON)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"cron": "@daily", "every": 5}, "every"),
        ({"every": 5, "at": 5}, "at"),
        ({"at": 5, "trigger": "a:B"}, "trigger"),
        ({"at": 5, "next_time": 5}, "next_time"),
        ({"align": True}, "align"),
        ({"align": 1, "every": 5}, "align"),
        ({"align": True, "every": 5, "next_time": NOON}, "align"),
        ({"align": True, "cron": "@daily"}, "align"),
    ],
)
def test_what_contradicts_itself_is_refused(fields, field):
    with pytest.raises(InvalidError) as refused:
        declared(**fields)
    assert refused.value.field == field
