"""Tests of which programs rows of type ``exec`` are allowed to run."""

import os

import pytest

from psched.base.errors import ConfigError, NotAllowedError
from psched.base.file_rights import only_mine, user_name
from psched.config import from_mapping
from psched.handlers.permissions import (
    check_fields,
    describe_programs,
    describe_triggers,
    find_listed,
    find_missing,
)

FREE = "rows may run any program as user "


def settings(**given):
    return from_mapping({"url": "sqlite:////none", **given}, environ={})


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """A folder with programs; it is the current folder, and the first folder in $PATH."""
    for name in "report", "busybox", "other":
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "notes").write_text("no program")
    for name, target in {"ls": "busybox", "sh": "busybox", "alias": "report"}.items():
        (tmp_path / name).symlink_to(target)
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "report").symlink_to("../other")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (True, True),
        (False, False),
        ("on", True),
        ("off", False),
        (["/usr/bin/env", "date"], ("/usr/bin/env", "date")),
    ],
)
def test_the_setting_is_a_word_a_truth_value_or_a_list(written, meant):
    assert settings(exec_type=written).allowed_programs == meant


def test_yaml_s_on_and_off_and_a_relative_path_can_be_written(tmp_path):
    from psched.config import load  # noqa: PLC0415  # YAML takes its time

    file = tmp_path / "psched.yml"
    for text, meant in {
        "on": True,
        "off": False,
        "[bin/work]": (f"{tmp_path}/bin/work",),
        "${KIND}": False,
    }.items():
        file.write_text(f"url: sqlite:////none\nexec_type: {text}\n")
        assert load(file, environ={"KIND": "off"}, cwd=tmp_path).allowed_programs == meant


@pytest.mark.parametrize("written", ["maybe", "/bin/date", "", [], [""], 1, ["a", 7], {"a": 1}])
def test_anything_else_is_refused_by_name(written):
    with pytest.raises(ConfigError, match="exec_type: "):
        settings(exec_type=written)


def test_it_is_off_by_default_only_where_one_handler_serves_every_type():
    assert settings().allowed_programs is True
    assert settings(dispatch="a:B").allowed_programs is True
    assert settings(exec="true").allowed_programs is False
    assert settings(script="a.py").allowed_programs is False
    assert settings(script="a.py", exec_type="on").allowed_programs is True
    # Options of the command line are applied later. psched must still know then whether
    # ``exec_type`` was set.
    assert settings().with_settings(exec="true").allowed_programs is False
    assert settings(exec_type=True).with_settings(exec="true").allowed_programs is True


@pytest.mark.parametrize(
    ("url", "meant"),
    [
        ("sqlite:///{}/x.db", True),
        ("memory:", True),
        ("mysql://u@localhost/x", False),
        ("mysql:///x?unix_socket=/run/m.sock", False),
        ("postgresql:///x", False),
        ("redis://localhost", False),
        ("unix:///run/redis.sock", False),
    ],
)
def test_by_default_it_is_on_only_if_nobody_else_may_add_rows(tmp_path, url, meant):
    found = settings(url=url.format(f"/{tmp_path}"))
    assert found.allowed_programs is meant
    # What a client may declare does not depend on it: workers decide.
    assert found.has_exec_handler
    assert settings(url=found.url, exec_type=True).allowed_programs is True
    assert settings(url=found.url, exec_type=False).allowed_programs is False


def test_a_store_of_a_user_s_own_is_not_trusted_whatever_its_url(tmp_path):
    found = settings(type="a:B", url=f"sqlite:////{tmp_path}/x.db")
    assert found.allowed_programs is False


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


class TestOnlyMine:
    """Whether nobody else may write a database's file."""

    @pytest.fixture
    def file(self, tmp_path):
        folder = tmp_path / "above" / "folder"
        folder.mkdir(parents=True)
        (folder / "x.db").touch()
        return folder / "x.db"

    @pytest.mark.parametrize(
        ("place", "mode"),
        [
            ("above/folder/x.db", 0o666),
            ("above/folder/x.db", 0o646),
            ("above/folder", 0o777),
            ("above/folder", 0o1777),
            ("above", 0o777),
        ],
    )
    def test_not_if_everybody_may_write_or_replace_it(self, tmp_path, file, place, mode):
        assert only_mine(file)
        (tmp_path / place).chmod(mode)
        assert not only_mine(file)
        assert settings(url=f"sqlite:////{file}").allowed_programs is False

    def test_but_above_its_folder_nobody_may_replace_another_s_with_a_sticky_bit(self, file):
        file.parent.parent.chmod(0o1777)
        assert only_mine(file)

    @as_root
    @pytest.mark.parametrize("place", ["above/folder/x.db", "above/folder", "above"])
    def test_not_if_it_belongs_to_another_user(self, tmp_path, file, place):
        os.chown(tmp_path / place, 65534, 0)
        assert not only_mine(file)

    @as_root
    @pytest.mark.parametrize(("group", "meant"), [(0, True), (65534, False), (54321, False)])
    def test_a_group_may_write_it_if_it_is_one_s_own(self, file, group, meant):
        os.chown(file, 0, group)
        file.chmod(0o664)
        assert only_mine(file) is meant

    @pytest.mark.parametrize("mode", [0o755, 0o777, 0o1777])
    def test_without_a_file_it_depends_on_where_it_will_be_made(self, file, mode):
        missing = file.parent / "not" / "yet" / "x.db"
        file.parent.chmod(mode)
        assert only_mine(missing) is (mode == 0o755)

    def test_a_link_must_be_as_safe_as_what_it_leads_to(self, tmp_path, file):
        link = tmp_path / "link.db"
        link.symlink_to(file)
        assert only_mine(link)
        file.parent.chmod(0o777)
        assert not only_mine(link)
        file.parent.chmod(0o755)
        tmp_path.chmod(0o777)
        assert not only_mine(link)


@pytest.mark.parametrize("command", ["report", "./report", "../{}/report", "{}/report", "alias"])
def test_a_command_is_compared_by_the_file_that_it_leads_to(programs, command):
    asked = command.format(programs if command.startswith("{") else programs.name)
    assert find_listed(asked, ["report"]) == f"{programs}/report"


def test_what_runs_is_the_listed_path(programs):
    assert find_listed("ls", [f"{programs}/sh", f"{programs}/ls"]) == f"{programs}/ls"
    assert find_listed("sh", [f"{programs}/busybox"]) == f"{programs}/busybox"


@pytest.mark.parametrize("command", ["other", "hidden/report", "/bin/sh"])
@pytest.mark.usefixtures("programs")
def test_another_program_is_refused_whatever_its_name(command):
    with pytest.raises(NotAllowedError, match=r"exec_type does not list .*: rows may run report$"):
        find_listed(command, ["report"])


@pytest.mark.parametrize("command", ["nowhere", "notes", "", "report\0", "hidden", "report "])
@pytest.mark.usefixtures("programs")
def test_what_is_no_program_here_is_refused_though_it_is_listed(command):
    with pytest.raises(NotAllowedError, match=r"exec_type is a list .* no executable program on"):
        find_listed(command, ["report", command])


@pytest.mark.usefixtures("programs")
def test_a_program_with_many_names_is_allowed_by_the_listed_one_only():
    with pytest.raises(NotAllowedError, match="exec_type does not list 'sh'"):
        find_listed("sh", ["ls"])


@pytest.mark.parametrize(
    "data",
    [
        {"shell": True},
        {"shell": 1},
        {"cwd": "/"},
        {"env": {"LD_PRELOAD": "/x.so"}},
        {"env": {"HARMLESS": ""}},
    ],
)
def test_fields_that_could_run_something_else_are_refused_beside_a_list(data):
    with pytest.raises(NotAllowedError, match="exec_type is a list of programs"):
        check_fields(data)


def test_empty_fields_and_all_others_are_allowed_beside_a_list():
    check_fields({"command": [], "env": {}, "cwd": None, "shell": False, "stdin": "", "k": 1})


def test_programs_that_are_not_there_are_named(programs):
    assert find_missing(["report", f"{programs}/gone", "notes"]) == [f"{programs}/gone", "notes"]


def test_it_is_told_describe_programs():
    def told(**given):
        return describe_programs(settings(**given))

    assert told(exec_type=True).startswith(FREE)
    assert told(exec_type=True).endswith(": exec_type is on")
    assert told().startswith(FREE)
    assert told().endswith(": only this user may add rows (exec_type)")
    assert told(url="mysql://u:p@db/x") == (
        "rows cannot choose a program: exec_type is off, because others than user"
        f" {user_name()} may add rows; set it to on, or to a list"
    )
    assert told(only=["exec"]).startswith(FREE)
    assert "because the setting only does not name it" in told(only=["mail"])
    assert told(exec_type=False) == "rows cannot choose a program: exec_type is off"
    assert told(script="a.py").endswith("is off, because one handler serves every type")
    assert told(exec_type=["date"]).endswith(": date (exec_type)")


def test_it_is_told_which_classes_rows_can_have_called(tmp_path):
    def told(**given):
        return describe_triggers(settings(**given))

    assert told() == "rows cannot choose a trigger class: load_path is empty"
    assert told(load_path=str(tmp_path), triggers=[]).endswith(": triggers is empty")
    assert told(load_path=str(tmp_path)).endswith(f"in these folders (load_path): {tmp_path}")
    assert told(load_path=str(tmp_path), triggers=["a.b", "c"]).endswith("(triggers): a.b, c")
