"""Tests of the setting ``expect``: how it is read, merged, stored and written."""

import json

import pytest
import yaml

from psched import config
from psched.base.errors import ConfigError, InvalidError
from psched.config.monitoring import NO_EXPECTATIONS, Expectations
from psched.core.declare import declare, redeclare
from psched.core.definition import parse_row, settings_of
from psched.core.model import Row
from psched.files.document import Reader
from psched.files.export import document_of

URL = {"url": "sqlite:///unused.db"}
SETTINGS = config.from_mapping(URL)
FULL = {"late": "5m", "longest": "1h", "silent": "1d", "unusual": 3}


def take(expect, **more):
    return config.from_mapping({**URL, "expect": expect, **more}).expect


def problem(**given):
    with pytest.raises(ConfigError) as caught:
        config.from_mapping({**URL, **given})
    return str(caught.value)


def declared(expect, settings=SETTINGS, **fields):
    return declare("k", {"cron": "@daily", "expect": expect, **fields}, settings, lambda: 0.0)


def expected(row, settings):
    return parse_row(row, settings).settings.expect


class TestReading:
    def test_durations_have_units_and_plain_numbers_are_seconds(self):
        found = take(FULL)
        assert (found.late, found.longest, found.silent, found.unusual) == (300, 3600, 86_400, 3)
        assert take({"late": 1.5}).late == 1.5
        assert found.any

    def test_nothing_is_expected_by_default(self):
        assert SETTINGS.expect == take(None) == take({}) == NO_EXPECTATIONS
        assert (SETTINGS.expect.late, SETTINGS.expect.any) == (None, False)

    @pytest.mark.parametrize("off", ["off", False, None])
    def test_a_part_can_be_off(self, off):
        found = take({"late": off, "silent": 60})
        assert found == {"late": None, "silent": 60}
        assert (found.late, found.silent) == (None, 60)

    @pytest.mark.parametrize("off", ["off", False])
    def test_everything_can_be_off(self, off):
        assert take(off) == dict.fromkeys(FULL)
        assert not take(off).any

    def test_each_wrong_part_is_named_with_what_would_do(self):
        found = problem(expect={"late": "soon", "unusual": 1, "slow": 5, "longest": 0})
        assert "expect.late: must be a number of seconds above 0" in found
        assert "(or with a unit: 30s, 5m, 1h, 30d); or off, not text" not in found
        assert "expect.unusual: must be a number above 1" in found
        assert "expect.slow: is not a part of expect; these are late, longest, silent" in found
        assert "expect.longest: must be a number of seconds above 0" in found
        assert found.count("or off") == 3

    @pytest.mark.parametrize("value", ["5m", 5, True, ["late"]])
    def test_something_else_than_a_mapping_is_refused(self, value):
        assert problem(expect=value).startswith("expect: must be a mapping such as {late: 5m")

    def test_the_line_of_a_wrong_part_is_told(self, tmp_path):
        file = tmp_path / "psched.yml"
        expect = "expect:\n  late: 5m\n  longest: never\n"
        of_type = "types: {a: {expect:\n  {late: 5m,\n   longest: -3}}}\n"
        file.write_text(f"table: x\n{expect}{of_type}")
        with pytest.raises(ConfigError) as caught:
            config.load(file)
        assert f"{file}:4: expect.longest: must be" in str(caught.value)
        assert f"{file}:7: types.a.expect.longest: must be" in str(caught.value)

    def test_a_reference_can_stand_in_a_part(self):
        found = config.from_mapping({**URL, "expect": {"late": "${L}"}}, environ={"L": "5"})
        assert found.expect.late == 5

    def test_perfectscheds_table_has_no_alerts(self):
        theirs = {"type": "rdb_compat", "url": "sqlite:///x.db", "table": "t"}
        assert problem(**theirs, expect=FULL) == (
            "expect: PerfectSched's table has no table of alerts beside it; remove it"
        )
        by_type = problem(**theirs, types={"mail": {"expect": FULL}})
        assert by_type.startswith("types: mail.expect: PerfectSched's table has no table of alerts")
        assert config.from_mapping({**theirs, "expect": {}}).expect == NO_EXPECTATIONS

    @pytest.mark.parametrize(
        ("given", "name"),
        [
            ({"expect": {"late": 60}}, "expect"),
            ({"types": {"mail": {"expect": {"unusual": 3}}}}, "types: mail.expect"),
        ],
    )
    def test_the_monitor_is_needed(self, given, name):
        assert problem(**given, monitor=False) == (
            f"{name}: is judged by the monitor; set monitor to on, or remove it"
        )
        config.from_mapping({**URL, "expect": "off", "monitor": False})
        settings = config.from_mapping({**URL, "monitor": False})
        # A row is run by each host, whichever of them have a monitor.
        own = declared({"late": 60}, settings)
        assert expected(own, settings) == {"late": 60}
        assert parse_row(own, settings).settings.expect.late == 60

    @pytest.mark.parametrize(
        ("given", "name"),
        [
            ({"expect": {"silent": "30d"}}, "expect: silent"),
            ({"types": {"mail": {"expect": {"silent": "32d"}}}}, "types: mail.expect.silent"),
        ],
    )
    def test_the_history_must_be_kept_for_longer_than_silent(self, given, name):
        assert problem(**given) == (
            f"{name}: must be shorter than history_keep, which is 30.0 d: the run history says when"
            " a schedule has last succeeded; raise history_keep"
        )
        for keep in "33d", 0:
            settings = config.from_mapping({**URL, **given, "history_keep": keep})
            with pytest.raises(ConfigError, match="must be shorter than history_keep"):
                settings.with_settings(history_keep="1d")
        # A row must run, whatever it expects.
        own = declared({"silent": "32d"})
        assert parse_row(own, SETTINGS).settings.expect.silent == 32 * 86_400

    def test_settings_can_still_be_changed_and_be_a_key(self):
        settings = config.from_mapping({**URL, "expect": FULL})
        assert settings.with_settings(poll_interval=2).expect == settings.expect
        assert {settings: 1}[config.from_mapping({**URL, "expect": FULL})] == 1
        assert "expect={'late': 300," in repr(settings)


class TestOverrides:
    def test_each_part_is_that_of_the_schedule_then_of_the_type_then_of_the_installation(self):
        settings = config.from_mapping(
            {
                **URL,
                "expect": {"late": 300, "longest": 3600, "silent": 86_400},
                "types": {"mail": {"expect": {"longest": 60, "unusual": 3}}},
            }
        )
        row = declared({"late": "10m", "silent": "off"}, settings, type="mail")
        assert expected(row, settings) == {
            "late": 600, "longest": 60, "silent": None, "unusual": 3
        }  # fmt: skip
        other = declared({"late": "10m"}, settings)
        assert expected(other, settings) == {"late": 600, "longest": 3600, "silent": 86_400}
        assert expected(Row(key="k"), settings) == settings.expect
        assert expected(declared("off", settings), settings) == dict.fromkeys(FULL)

    def test_it_is_stored_as_seconds(self):
        row = declared({"late": "5m", "silent": False, "unusual": 2.5})
        stored = {"expect": {"late": 300, "silent": "off", "unusual": 2.5}}
        assert json.loads(row.options) == stored
        assert declared(Expectations({"late": 300.0})).options == '{"expect":{"late":300}}'

    def test_it_can_be_changed_and_removed(self):
        row = declared({"late": "5m"})
        changed = redeclare(row, {"expect": {"longest": "1h"}}, SETTINGS, lambda: 0.0)
        assert expected(changed, SETTINGS) == {"longest": 3600}
        assert redeclare(changed, {"expect": None}, SETTINGS, lambda: 0.0).options is None

    def test_a_wrong_part_of_a_schedule_is_named(self):
        with pytest.raises(InvalidError) as caught:
            declared({"late": "soon"})
        assert caught.value.field == "expect"
        assert caught.value.problem.startswith("late: must be a number of seconds above 0")
        with pytest.raises(InvalidError) as caught:
            declared(5)
        assert caught.value.problem.startswith("must be a mapping such as")

    @pytest.mark.parametrize("stored", ['{"expect":{"late":-1}}', '{"expect":7}', '{"expect":[]}'])
    def test_what_plain_sql_has_written_is_checked(self, stored):
        settings = config.from_mapping({**URL, "expect": {"late": 5}})
        row = Row(key="k", options=stored)
        with pytest.raises(InvalidError, match=r"options: expect"):
            parse_row(row, settings)
        assert settings_of(row, settings) == settings


class TestFiles:
    def test_a_schedule_is_exported_as_it_was_declared(self, tmp_path):
        row = declared({"late": "5m", "silent": "off"})
        written = document_of(row, SETTINGS)
        assert yaml.safe_load(written)["schedules"]["k"]["expect"] == {"late": 300, "silent": "off"}
        file = tmp_path / "schedules.yml"
        file.write_text(written)
        (document,) = Reader(SETTINGS, now=lambda: 0.0).read([file])
        assert document.rows["k"].options == row.options

    def test_off_is_understood_as_yaml_reads_it(self, tmp_path):
        file = tmp_path / "schedules.yml"
        file.write_text(
            "label: x\nschedules:\n  k: {cron: '@daily', expect: {late: off, longest: 1h}}\n"
        )
        (document,) = Reader(SETTINGS, now=lambda: 0.0).read([file])
        options = json.loads(document.rows["k"].options)
        assert options["expect"] == {"late": "off", "longest": 3600}

    def test_a_mistake_is_told_with_key_and_field(self, tmp_path):
        file = tmp_path / "schedules.yml"
        file.write_text("label: x\nschedules:\n  k:\n    cron: '@daily'\n    expect: {slow: 5m}\n")
        with pytest.raises(ConfigError, match=r"yml:5: k: expect: slow: is not a part of expect"):
            Reader(SETTINGS, now=lambda: 0.0).read([file])
