"""Root's list of who may run what: how it is read, what it allows, and who may change it."""

import os
import pwd
from pathlib import Path

import pytest

from psched.process.run_as_list import (
    RefusedError,
    account_of,
    allowed,
    parse,
    read,
    why_changeable,
)

JOBS = pwd.struct_passwd(("jobs", "x", 4242, 4242, "", "/home/jobs", "/bin/bash"))

LIST = """
# comment
jobs    /opt/exact --full 'two words'   # and another
jobs    /opt/open fixed *
jobs    LANG=C.UTF-8 A='b c' /opt/set
www     /opt/www
"""


def ask(arguments, environment=None, folder=None, account=JOBS, text=LIST):
    return allowed(parse(text), account, arguments, environment or {}, folder)


@pytest.mark.parametrize(
    "arguments",
    [
        ["/opt/exact", "--full", "two words"],
        ["/opt/open", "fixed"],
        ["/opt/open", "fixed", "and", "*", ""],
        ["/opt/set"],
    ],
)
def test_a_program_with_the_arguments_of_a_line_is_allowed(arguments):
    assert ask(arguments)["HOME"] == "/home/jobs"


def test_a_star_in_quotes_is_an_argument_and_no_leave_for_others():
    for star in "'*'", '"*"', "\\*":
        text = f"jobs /usr/bin/find /srv -name {star}"
        ask(["/usr/bin/find", "/srv", "-name", "*"], text=text)
        with pytest.raises(RefusedError, match="does not allow"):
            ask(["/usr/bin/find", "/srv", "-name", "x", "-delete"], text=text)


def test_a_comment_does_not_begin_within_a_word():
    text = "jobs /opt/copy --to=disk#1 --read-only # and a comment"

    ask(["/opt/copy", "--to=disk#1", "--read-only"], text=text)
    with pytest.raises(RefusedError, match="does not allow"):
        ask(["/opt/copy", "--to=disk"], text=text)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["/opt/exact"],
        ["/opt/exact", "--full"],
        ["/opt/exact", "--full", "two", "words"],
        ["/opt/exact", "--full", "two words", "more"],
        ["/opt/open"],
        ["/opt/open", "other", "fixed"],
        ["/opt/../opt/exact", "--full", "two words"],
        ["/opt//set"],
        ["opt/set"],
        ["set"],
        ["LANG=C.UTF-8", "A=b c", "/opt/set"],
        ["/opt/www"],
        ["*"],
    ],
)
def test_other_programs_arguments_and_spellings_are_refused(arguments):
    with pytest.raises(RefusedError, match="does not allow user jobs"):
        ask(arguments)


def test_a_user_without_a_line_may_run_nothing():
    other = pwd.struct_passwd(("job", "x", 1, 1, "", "/", "/bin/sh"))

    with pytest.raises(RefusedError, match=r"no line for user job$"):
        ask(["/opt/set"], account=other)


def test_a_program_gets_the_variables_of_its_user_its_line_and_its_task_alone():
    environment = ask(["/opt/set"], {"PSCHED_KEY": "k", "A": "b c", "HOME": "/home/jobs"})

    assert environment == {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": "/home/jobs",
        "USER": "jobs",
        "LOGNAME": "jobs",
        "SHELL": "/bin/bash",
        "LANG": "C.UTF-8",
        "A": "b c",
        "PSCHED_KEY": "k",
    }


@pytest.mark.parametrize(
    "variable",
    [
        ("LD_PRELOAD", "/srv/x.so"),
        ("PATH", "/srv"),
        ("HOME", "/root"),
        ("A", "other"),
        ("PSCHED_CONFIG", "/srv/x"),
        ("BASH_ENV", "/srv/x"),
        ("", "x"),
    ],
)
def test_a_row_sets_no_variable(variable):
    with pytest.raises(RefusedError, match=r"^env: "):
        ask(["/opt/set"], dict([variable]))


def test_a_row_chooses_no_folder():
    assert ask(["/opt/set"], folder="/")
    assert ask(["/opt/set"], folder="/home/jobs")
    for folder in "/srv", "/home/jobs/..", "/root":
        with pytest.raises(RefusedError, match=r"^cwd: "):
            ask(["/opt/set"], folder=folder)


@pytest.mark.parametrize(
    "line",
    ["jobs", "jobs *", "jobs relative", "* /opt/x", "jobs A=b", "jobs '", "jobs A=b x", "/opt/x"],
)
def test_a_line_that_is_not_understood_refuses_everything(line):
    with pytest.raises(RefusedError, match=r"run_as, line 2: "):
        ask(["/opt/set"], text=f"jobs /opt/set\n{line}\n")


@pytest.mark.parametrize("name", ["root", "0", "", "no-such-user", "+0", "ro\0ot", "\ud800"])
def test_root_and_users_that_there_are_not_are_refused(name):
    with pytest.raises(RefusedError):
        account_of(name)


class TestWhoMayChangeIt:
    """The list, and each program."""

    pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")

    @pytest.fixture
    def file(self):
        # Not below /tmp, which everybody may write.
        folder = Path("/run", f"psched-test-{os.getpid()}")
        folder.mkdir(mode=0o755)
        file = folder / "file"
        file.write_text(LIST)
        file.chmod(0o644)
        yield file
        for each in folder.iterdir():
            each.unlink()
        folder.rmdir()

    def test_what_only_root_may_write_is_read(self, file):
        assert why_changeable(str(file)) is None
        assert len(read(str(file))) == 4

    def test_a_list_that_is_not_there_allows_nothing(self, file):
        with pytest.raises(RefusedError, match="does not exist, so root allows no user"):
            read(str(file.with_name("none")))

    @pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
    def test_what_others_may_write_is_refused(self, file, mode):
        file.chmod(mode)

        with pytest.raises(RefusedError, match=f"may write {file}: chmod go-w {file}"):
            read(str(file))

    def test_what_belongs_to_another_user_is_refused(self, file):
        os.chown(file, 4242, 0)

        assert "belongs to user 4242" in why_changeable(str(file))
        assert why_changeable(str(file), 4242) is None
        assert "belongs to user 4242" in why_changeable(str(file), 4243)

    def test_a_folder_that_others_may_write_is_refused_also_a_sticky_one(self, file):
        file.parent.chmod(0o1777)

        assert f"may write {file.parent}" in why_changeable(str(file))

    def test_each_link_on_the_way_counts_and_where_it_leads(self, file):
        file.parent.chmod(0o755)
        link, second = file.with_name("link"), file.with_name("second")
        link.symlink_to(second)
        second.symlink_to("file")
        assert why_changeable(str(link)) is None
        os.lchown(second, 4242, 4242)

        assert f"{second} belongs to user 4242" in why_changeable(str(link))
        second.unlink()
        second.symlink_to("/tmp/x")  # noqa: S108  # everybody may write there
        assert "may write /tmp" in why_changeable(str(link))
