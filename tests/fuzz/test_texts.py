"""What people write: configurations, files of schedules, crontabs, command lines."""

import contextlib
import json
import os
import time
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner

from psched import config
from psched.base.errors import ConfigError
from psched.cli.commands import load
from psched.cli.commands import psched as psched_command
from psched.config import kinds
from psched.contrib.crontab import command as crontab_command
from psched.contrib.crontab import parser
from psched.files.document import Reader
from support.fuzzing import SEED, cases, told

ROOT = Path(__file__).parents[2]
CONFIGURATION = (ROOT / "etc/psched.yml.example").read_text()

MOST_CPU = 2.0
"""Seconds of CPU time that reading one text may take, at most. A case takes some milliseconds."""

SCHEDULES = """
x-often: &often {cron: "*/5 * * * *", timezone: Europe/Paris}
label: reports
schedules:
  nightly:
    type: exec
    cron: "30 2 * * *"
    data: {command: [report, --all], shell: false}
    max_attempts: 3
  often: {<<: *often, type: mail, delay: 5, data: {to: [ann, bob]}, note: "what, and why"}
  every: {type: mail, every: 90, catchup: latest}
"""

CRONTAB = """\
# what it is for
SHELL=/bin/sh
MAILTO=ann
CRON_TZ=Asia/Tokyo
*/5 1-6 * JAN-MAR MON   backup --all >/dev/null 2>&1
30 2 * * *  root  cat > /tmp/x%first line%second \\% line
@daily  echo "$HOME"
@reboot start
"""

CORE = yaml.CSafeLoader if hasattr(yaml, "CSafeLoader") else yaml.SafeLoader


@contextlib.contextmanager
def bounded_cpu():
    """Fail if the body of the with statement takes too much CPU time."""
    before = time.process_time()
    yield
    took = time.process_time() - before
    assert took < MOST_CPU, f"took {took:.1f} s of CPU time"


def odd_yaml(case, whole):
    """A YAML text with mistakes, or with bad intentions."""
    kind = case.randrange(5)
    if kind < 3:
        return case.spoilt(whole)
    if kind == 3:
        parsed = yaml.load(whole, Loader=CORE)  # noqa: S506  # a safe one
        place = parsed
        while isinstance(place, dict) and place:
            name = case.choice([*place])
            if not isinstance(place[name], dict) or case.maybe(0.3):
                place[name] = case.json()
                break
            place = place[name]
        # Numbers that are not finite, and texts of any kind, are written as YAML has them.
        return yaml.safe_dump(parsed, allow_unicode=case.maybe())
    return bomb(case)


def bomb(case):
    """A short text that becomes a long one: aliases of aliases, or merges of merges."""
    levels, width = case.randint(2, 9), case.randint(2, 9)
    lines = ["x-a0: &a0 {k: v}"]
    for level in range(1, levels):
        aliases = ", ".join([f"*a{level - 1}"] * width)
        merged = case.maybe(0.3)
        lines.append(
            f"x-a{level}: &a{level} " + (f"{{<<: [{aliases}]}}" if merged else f"[{aliases}]")
        )
    lines.append(f"schedules: {{k: {{type: t, cron: '@daily', data: {{a: *a{levels - 1}}}}}}}")
    return "\n".join(lines)


# --- configurations ------------------------------------------------------------------


def check_configurations(folder, count):
    """Any file is accepted, or refused with a text that names the file."""
    path = folder / "psched.yml"
    for case in cases("configuration", count):
        content = odd_yaml(case, CONFIGURATION)
        path.write_text(content)
        with told(case, content), bounded_cpu():
            try:
                config.load(path, cwd=folder)
            except ConfigError as error:
                assert str(path) in str(error) or "psched.yml" in str(error)  # noqa: PT017


def check_settings(count):
    """Any mapping from a program is accepted, or refused."""
    names = [*config.SETTINGS]
    for case in cases("settings", count):
        given = {case.choice(names): case.json() for _ in range(case.randint(1, 3))}
        with told(case, given), bounded_cpu():
            try:
                config.from_mapping(given)
            except ConfigError as error:
                assert any(name in str(error) for name in names)  # noqa: PT017


def test_configurations(tmp_path):
    check_configurations(tmp_path, 400)


def test_settings():
    check_settings(1500)


def test_a_fault_in_reading_a_setting_is_found(monkeypatch):
    def read(_self, value, _around):
        return float(value)  # of a list, say: TypeError

    monkeypatch.setattr(kinds.Number, "read", read)
    with pytest.raises((TypeError, ValueError, AttributeError)):
        check_settings(1500)


# --- files of schedules ----------------------------------------------------------------


def check_schedule_files(folder, count):
    """Any file is read, or refused with a text that names the file."""
    path, settings = folder / "schedules.yml", config.from_mapping({"url": "memory:"})
    for case in cases("schedules", count):
        content = odd_yaml(case, SCHEDULES)
        path.write_text(content)
        with told(case, content), bounded_cpu():
            reader = Reader(settings, now=lambda: 0)
            try:
                documents = reader.read([path])
            except ConfigError as error:
                assert "schedules.yml" in str(error)  # noqa: PT017
            else:
                assert all("key" in each for document in documents for each in document.schedules)


def test_schedule_files(tmp_path):
    check_schedule_files(tmp_path, 600)


def test_a_fault_in_reading_a_schedule_is_found(monkeypatch, tmp_path):
    monkeypatch.setattr(Reader, "_read_schedule", lambda *_: {}["k"])
    with pytest.raises(KeyError) as found:
        check_schedule_files(tmp_path, 600)
    assert any(f"case {SEED}:schedules:" in note for note in found.value.__notes__)


# --- crontabs ----------------------------------------------------------------------------


def check_crontabs(count):
    """A crontab is read line by line: invalid lines become remarks, the others are kept."""
    for case in cases("crontab", count):
        content = case.spoilt(CRONTAB) if case.maybe(0.8) else case.text(400)
        with told(case, content), bounded_cpu():
            read = parser.parse(content, system=case.maybe())
            assert len(read.entries) <= content.count("\n") + 1


def test_crontabs():
    check_crontabs(1500)


def test_a_fault_in_reading_a_crontab_is_found(monkeypatch):
    monkeypatch.setattr(parser, "_number", int)  # of "JAN"
    with pytest.raises(ValueError, match="invalid literal"):
        check_crontabs(1500)


# --- command lines -------------------------------------------------------------------------

NOT_HERE = {"run", "web", "demo", "check"}
"""Commands that serve until a signal ends them; and check, which searches all objects of its
process, here all of pytest's, for what would not survive a fork."""

EXITS = {0, 1, 2, 3}


def check_command_lines(folder, count):
    """Any command line ends with one of the documented statuses, and without a traceback."""
    (folder / "psched.yml").write_text(f"url: sqlite:///{folder}/psched.db\n")
    (folder / "schedules.yml").write_text(SCHEDULES)
    (folder / "crontab").write_text(CRONTAB)
    invoke(folder, ["init"])
    invoke(folder, ["add", "nightly", "mail", "30 2 * * *", "{}"])
    names = sorted({*psched_command.commands} - NOT_HERE)
    for case in cases("command line", count):
        name = case.choice(names)
        words = [name, *arguments(case, load(name), folder)]
        with told(case, words), bounded_cpu():
            invoke(folder, words)


def arguments(case, command, folder):
    """Words for a command: options that it has, with values that may suit them."""
    words = []
    options = [each for each in command.params if isinstance(each, click.Option)]
    for option in case.sample(options, case.randint(0, min(3, len(options)))):
        words.append(case.choice(option.opts))
        if not option.is_flag or case.maybe(0.1):
            words.append(word(case, folder))
    words += [word(case, folder) for _ in range(case.randrange(5))]
    # A command that waits, waits only briefly.
    return ["--wait=0.01" if each == "--wait" else each for each in words]


def word(case, folder):
    """A word of a command line; the kernel passes any bytes but NUL."""
    kinds_of_words = (
        lambda: case.choice(("nightly", "mail", "@daily", "*/5 * * * *", "{}", "-", "--", "x=y")),
        lambda: case.choice(("0", "1", "-1", "1e3", "nan", "inf", "99999999999999999999")),
        lambda: str(folder / case.choice(("schedules.yml", "crontab", "none", "out.yml"))),
        lambda: case.json_text()[:100_000],
        case.text,
        lambda: os.fsdecode(case.bytes()),
    )
    return case.choice(kinds_of_words)().replace("\0", "")


def invoke(folder, words):
    with contextlib.chdir(folder):
        result = CliRunner().invoke(
            psched_command, ["-c", "psched.yml", *words], prog_name="psched", input="{}"
        )
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code in EXITS, result.output
    assert "Traceback" not in result.output
    return result


def test_command_lines(tmp_path):
    check_command_lines(tmp_path, 800)


def test_a_fault_in_a_command_is_found(monkeypatch, tmp_path):
    monkeypatch.setattr(crontab_command, "_form", lambda *_, **__: json.loads("{"))
    with pytest.raises(json.JSONDecodeError):
        check_command_lines(tmp_path, 3000)
