"""Tests that type checkers accept right calls of psched, and refuse wrong ones."""

import inspect
import json
import pydoc
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import get_type_hints

import pytest

import psched
import psched.errors
from psched.config import OVERRIDES, SETTINGS
from psched.core import arguments
from psched.core.arguments import Settings
from psched.core.declare import KNOWN

FOLDER = Path(__file__).parents[1] / "typing"
ROOT = FOLDER.parents[1]


def mypy(folder):
    """The errors by file and line, as mypy finds them."""
    config = folder / "mypy.ini"
    config.write_text("[mypy]\nstrict = true\n[mypy-psched.*]\nfollow_imports = silent\n")
    command = [sys.executable, "-m", "mypy", "--config-file", config, "--output=json"]
    done = run([*command, f"--cache-dir={folder / 'cache'}", FOLDER])
    found = defaultdict(str)
    for line in done.stdout.splitlines():
        each = json.loads(line)
        if each["severity"] == "error":
            found[Path(each["file"]).name, each["line"]] += each["message"]
    return found


def pyright(folder):
    """The errors by file and line, as pyright finds them."""
    config = folder / "pyrightconfig.json"
    settings = {"typeCheckingMode": "strict", "include": [str(FOLDER)], "extraPaths": [str(ROOT)]}
    config.write_text(json.dumps(settings))
    command = [sys.executable, "-m", "basedpyright", "-p", config, "--outputjson"]
    done = run([*command, "--pythonpath", sys.executable])
    found = defaultdict(str)
    for each in json.loads(done.stdout)["generalDiagnostics"]:
        if each["severity"] == "error":
            place = Path(each["file"]).name, each["range"]["start"]["line"] + 1
            found[place] += each["message"]
    return found


def run(command):
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr  # errors were found
    return done


@pytest.mark.slow
@pytest.mark.parametrize("check", [mypy, pyright])
def test_wrong_calls_are_refused_and_right_ones_are_accepted(check, tmp_path):
    wrong = dict[tuple[str, int], str]()
    for file in FOLDER.glob("*.py"):
        for number, line in enumerate(file.read_text().splitlines(), start=1):
            if mark := re.search(r"# wrong: (\w+)$", line):
                wrong[file.name, number] = mark[1]
    assert len(wrong) > 20
    found = check(tmp_path)
    assert {*found} == {*wrong}, found
    for place, word in wrong.items():
        assert re.search(rf"\b{word}\b", found[place]), (place, found[place])


def test_the_types_name_each_setting_and_each_field():
    assert {*Settings.__annotations__} == {*SETTINGS}
    assert {*OVERRIDES, "alive_time"} == {*arguments.SharedSettings.__annotations__}
    assert {*arguments.Changes.__annotations__} == {*KNOWN}


def test_the_types_have_each_word_of_a_setting_with_words():
    for name, hint in get_type_hints(Settings).items():
        words = getattr(SETTINGS[name].kind, "words", ())
        assert all(repr(word) in str(hint) for word in words), name


@pytest.mark.slow
def test_the_help_shows_the_public_names():
    text = pydoc.plain(pydoc.render_doc(psched))
    for name in psched.__all__:
        assert re.search(rf"\b{name}\b", text), name
    for name in ("Task", "ScheduleCollection", "Program"):
        assert f"    class {name}(" in text
    assert "start(" in text
    assert "`open`" in text
    assert {*psched.__all__, "open"} <= {*dir(psched)}


def test_every_error_that_a_request_can_raise_is_exported():
    errors = {name for name in dir(psched.errors) if name.endswith("Error")}
    raised_inside_workers = {
        *("CommandError", "LoadError", "NoRoomError", "NotAllowedError", "UnfinishedError")
    }
    assert errors - raised_inside_workers == {
        name
        for name in psched.__all__
        if inspect.isclass(getattr(psched, name)) and issubclass(getattr(psched, name), Exception)
    }
