import re
import shutil
import zoneinfo
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from importlib.resources import files

import pytest

from psched.base.errors import InvalidError
from psched.triggers import zone
from psched.triggers.zone import LATEST, Change, find_zone

NEW_YORK = "America/New_York"

CHANGES = [
    (NEW_YORK, "2025-03-09"),
    (NEW_YORK, "2025-11-02"),
    ("Europe/Dublin", "2025-10-26"),  # Summer is the standard time, winter is "saving".
    ("Australia/Lord_Howe", "2025-04-05"),  # The clock changes by half an hour.
    ("Antarctica/Troll", "2025-03-30"),  # The clock changes by two hours.
    ("America/St_Johns", "1988-10-30"),  # The clock changes by two hours.
    ("Africa/Casablanca", "2025-02-23"),  # Ramadan.
    ("Africa/Monrovia", "1972-01-07"),  # The offset was 44 minutes and 30 seconds before.
    ("America/Sao_Paulo", "2017-10-15"),  # The clock changes at midnight.
    ("Asia/Pyongyang", "2018-05-04"),  # The offset changes by half an hour for ever.
    ("Antarctica/Casey", "2018-03-10"),  # The clock changes by three hours.
    ("Pacific/Apia", "2011-12-30"),  # A whole day is left out.
    ("Pacific/Kwajalein", "1969-09-30"),  # The clock shows 23 hours twice.
    (NEW_YORK, "2100-11-07"),  # The change follows from the rule, beyond the table.
]


def at(text):
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


def test_a_wall_time_is_counted_as_if_it_were_utc():
    assert find_zone(NEW_YORK).wall(at("2025-07-01 12:00")) == at("2025-07-01 08:00")


def test_a_wall_time_in_the_middle_of_a_season_is_shown_once():
    assert find_zone(NEW_YORK).instants(at("2025-07-01 08:00")) == (at("2025-07-01 12:00"),)


def test_a_repeated_wall_time_is_shown_twice():
    shown = find_zone(NEW_YORK).instants(at("2025-11-02 01:30"))

    assert shown == (at("2025-11-02 05:30"), at("2025-11-02 06:30"))


def test_a_skipped_wall_time_is_not_shown():
    assert find_zone(NEW_YORK).instants(at("2025-03-09 02:30")) == ()


def test_a_change_forward_tells_its_instant_and_the_wall_times_it_skips():
    change = find_zone(NEW_YORK).change(at("2025-03-09 02:59"))

    assert change.instant == at("2025-03-09 07:00")
    assert (change.start, change.end) == (at("2025-03-09 02:00"), at("2025-03-09 03:00"))
    assert change.size == 3600


def test_a_change_back_tells_its_instant_and_the_wall_times_it_repeats():
    change = find_zone(NEW_YORK).change(at("2025-11-02 01:00"))

    assert change.instant == at("2025-11-02 06:00")
    assert (change.start, change.end) == (at("2025-11-02 01:00"), at("2025-11-02 02:00"))


def test_no_change_touches_a_wall_time_that_is_shown_once():
    assert find_zone(NEW_YORK).change(at("2025-11-02 02:00")).size == 0


SPRING = Change(at("2025-03-09 07:00"), at("2025-03-09 02:00"), at("2025-03-09 03:00"))
AUTUMN = Change(at("2025-11-02 06:00"), at("2025-11-02 01:00"), at("2025-11-02 02:00"))


def test_the_changes_of_a_year_come_in_order():
    clock = find_zone(NEW_YORK)

    assert [*clock.changes(at("2025-01-01 00:00"), at("2026-01-01 00:00"))] == [SPRING, AUTUMN]
    assert [*find_zone("UTC").changes(at("2025-01-01 00:00"), at("2026-01-01 00:00"))] == []


@pytest.mark.parametrize("length", [1, 3600, 86_400, 86_401, 200_000])
def test_a_change_counts_if_it_is_after_the_begin_and_not_after_the_end(length):
    clock, change = find_zone(NEW_YORK), SPRING.instant

    assert [*clock.changes(change - length, change)] == [SPRING]
    assert [*clock.changes(change - 1, change - 1 + length)] == [SPRING]
    assert [*clock.changes(change - length, change - 1)] == []
    assert [*clock.changes(change, change + length)] == []


def test_a_time_is_shown_as_the_clock_shows_it_and_without_seconds_if_there_are_none():
    clock = find_zone(NEW_YORK)

    assert clock.shown(at("2025-07-01 04:30")) == ("2025-07-01", "00:30 EDT")
    assert clock.shown(at("2025-07-01 03:59") + 59) == ("2025-06-30", "23:59:59 EDT")
    assert clock.at(at("2025-07-01 04:30") + 0.5).isoformat() == "2025-07-01T00:30:00.500000-04:00"


def test_from_the_last_day_of_the_calendar_on_times_are_shown_in_utc():
    clock = find_zone("Pacific/Kiritimati")

    assert clock.at(LATEST - 1).isoformat() == "9999-12-31T13:59:59+14:00"
    assert clock.at(LATEST).isoformat() == "9999-12-31T00:00:00+00:00"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "day"), CHANGES)
def test_a_walk_through_every_minute_sees_each_wall_time_when_the_zone_says(name, day):
    around = find_zone(name)
    noon = datetime.fromisoformat(day).replace(hour=12, tzinfo=UTC)
    begin, end = (int((noon + timedelta(days=days)).timestamp()) for days in (-4, 4))
    info = _zone_info(name)
    seen = defaultdict(list)
    # Half minutes, so that Monrovia's wall minutes begin on one, too.
    for instant in range(begin, end, 30):
        naive = datetime.fromtimestamp(instant, info).replace(tzinfo=UTC)
        seen[int(naive.timestamp())].append(instant)

    walls = range(begin + 2 * 86400, end - 2 * 86400, 30)
    odd = [wall for wall in walls if len(seen[wall]) != 1]

    assert [wall for wall in walls if around.instants(wall) != tuple(seen[wall])] == []
    assert len({around.change(wall) for wall in odd}) == 1
    change = around.change(odd[0])
    assert (change.start, change.end) == (odd[0], odd[-1] + 30)
    assert around.wall(change.instant) in {change.start, change.end}
    assert around.wall(change.instant - 1) + 1 in {change.start, change.end}


def test_every_accepted_name_can_be_loaded():
    names = zone.zone_names()

    assert len(names) > 500
    assert {find_zone(name).name for name in names} == names


@pytest.mark.parametrize(
    "name",
    [
        "",
        "America",
        "/etc/localtime",
        "../zoneinfo/UTC",
        "posix/UTC",
        "right/UTC",
        "localtime",
        "Factory",
        "JST-9",
        "UTC\0",
        "Europe/Paris ",
        "Zürich" * 9999,
    ],
)
def test_a_name_that_is_not_in_the_list_of_tzdata_is_refused(name):
    with pytest.raises(InvalidError, match=r"^timezone: .{,80} is not a zone; ") as refusal:
        find_zone(name)

    assert refusal.value.field == "timezone"


@pytest.mark.parametrize("name", ["europe/paris", "Europe/Pari", "EUROPE/PARIS", "Europe/Paris\n"])
def test_a_misspelt_name_is_answered_with_the_one_that_was_meant(name):
    with pytest.raises(InvalidError, match="did you mean 'Europe/Paris'"):
        find_zone(name)


def test_a_zone_is_its_name():
    zone._load.cache_clear()
    before = find_zone(NEW_YORK)
    zone._load.cache_clear()

    assert before == find_zone(NEW_YORK) != find_zone("UTC")
    assert repr(before) == "Zone(name='America/New_York')"


def test_the_version_is_the_one_that_iana_gives_the_data():
    first_line = files("tzdata").joinpath("zoneinfo", "tzdata.zi").read_text().splitlines()[0]

    assert re.fullmatch(r"20\d\d[a-z]+", zone.VERSION)
    assert first_line == f"# version {zone.VERSION}"


def test_the_files_of_the_system_are_not_read(tmp_path):
    shutil.copy(str(files("tzdata").joinpath("zoneinfo", "Asia", "Tokyo")), tmp_path / "WET")
    before = zoneinfo.TZPATH
    zoneinfo.reset_tzpath(to=[tmp_path])
    try:
        zone._load.cache_clear()
        wall = find_zone("WET").wall(0)
    finally:
        zoneinfo.reset_tzpath(to=before)

    assert wall in {0, 3600}  # Not Tokyo's nine hours.


def test_the_zones_of_the_process_are_left_alone():
    before = zoneinfo.TZPATH, zoneinfo.ZoneInfo("UTC")
    zone._load.cache_clear()
    find_zone("UTC")

    assert (zoneinfo.TZPATH, zoneinfo.ZoneInfo("UTC")) == before


def _zone_info(name):
    with files("tzdata").joinpath("zoneinfo", name).open("rb") as file:
        return zoneinfo.ZoneInfo.from_file(file)
