"""What psched refuses: one clear line on standard error that names the field, and exit status 1."""

import os

import pytest

DAILY = ("t", "@daily")


def refused(done):
    """The line that a refused command has written."""
    assert done.exit_code == 1, (done.output, done.exception)
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.stdout == ""
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr.removeprefix("Error: ").rstrip("\n")


@pytest.mark.parametrize(
    ("arguments", "begins"),
    [
        (("", *DAILY), "key: must not be empty"),
        ((" s1", *DAILY), "key: ' s1' must be printable"),
        (("k" * 256, *DAILY), "key: must not be longer than 255 characters"),
        (("a\nb", *DAILY), r"key: 'a\nb' must be printable"),
        (("s1", "", "@daily"), "type: must not be empty"),
        (("s1", "t" * 256, "@daily"), "type: "),
        (("s1", "t", "* * * *"), "cron: "),
        (("s1", "t", "61 * * * *"), "cron: "),
        (("s1", "t", "0 0 30 2 *"), "cron: "),
        (("s1", "t", "*/0 * * * *"), "cron: "),
        (("s1", "t", "@never"), "cron: "),
        (("s1", "t", ""), "cron: "),
        (("s1", "t", "0 " * 1000), "cron: "),
        (("s1", *DAILY, "{"), "data: is not JSON"),
        (("s1", *DAILY, "[1]"), "data: must be a JSON object, not list"),
        (("s1", *DAILY, '{"k": NaN}'), "data: is not JSON"),
        (("s1", *DAILY, "[" * 100_000), "data: is nested more than 100 levels deep"),
        (("s1", *DAILY, "-t", "Asia/Atlantis"), "timezone: "),
        (("s1", *DAILY, "-t", "../../etc/passwd"), "timezone: "),
        (("s1", *DAILY, "-t", ""), "timezone: "),
        (("s1", *DAILY, "-t", "Asia/Atlantis", "-s", "2026-01-01"), "timezone: "),
        (("s1", *DAILY, "-d", "-1"), "delay: must be from 0"),
        (("s1", *DAILY, "-d", "99999999999"), "delay: must be from 0"),
        (("s1", *DAILY, "-s", "soon"), "start: 'soon' is no time; write 18:00"),
        (("s1", *DAILY, "-s", "20260131"), "start: '20260131' could be a date or Unix seconds"),
        (("s1", *DAILY, "-a", "202601310900"), "at: '202601310900' could be a date or Unix"),
        (("s1", *DAILY, "-s", "2026-02-30"), "start: '2026-02-30' is no time"),
        (("s1", *DAILY, "-s", "-1"), "start: '-1' is no time"),
        (("s1", *DAILY, "-s", "9" * 15), f"start: '{'9' * 15}' is no time"),
        (("s1", *DAILY, "-s", "9" * 5000), "start: "),
        (("s1", *DAILY, "-s", "0001-01-01T00:00"), "start: '0001-"),
        (("s1", *DAILY, "-s", "0001-01-01T00:00", "-t", "Asia/Tokyo"), "start: '0001-"),
        (("s1", *DAILY, "-s", "9999-12-31T23:59:59-12:00"), "start: '9999-"),
        (("s1", *DAILY, "-s", "9999-12-31T23:59", "-t", "America/New_York"), "start: '9999-"),
        (("s1", *DAILY, "-s", "1969-01-01"), "start: '1969-01-01' is no time"),
        (("s1", *DAILY, "-a", "soon"), "at: 'soon' is no time"),
        (("s1", *DAILY, "-a", "9" * 15), f"at: '{'9' * 15}' is no time"),
        (("s1", "t", "0 0 1 1 *", "-s", "9999-06-01"), "cron: never fires"),
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused_with_the_field_named(service, arguments, begins):
    assert refused(service.invoke("add", *arguments)).startswith(begins)
    with service.schedules() as schedules:
        assert [*schedules.list()] == []


def test_a_key_that_is_taken_is_refused_and_nothing_is_changed(each_service):
    each_service.invoke("add", "s1", "t", "0 0 * * *", '{"k": 1}')

    second = each_service.invoke("add", "s1", "other", "0 0 * * *", '{"k": 2}')

    assert refused(second) == "the key 's1' is taken"
    assert each_service.row("s1").data == {"k": 1}


BYTES = os.fsdecode(b"\xff\x1b")
"""An argument that is not UTF-8 text."""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("show", BYTES), "no schedule has the key"),
        (("next", BYTES), "no schedule has the key"),
        (("cancel", BYTES), "no schedule has the key"),
        (("requeue", BYTES), "no schedule has the key"),
        (("delete", BYTES), "no schedule has the key"),
        (("history", BYTES), "no schedule has the key"),
        (("why", BYTES), "no schedule has the key"),
        (("audit", BYTES), "no schedule has the key"),
        (("verify", BYTES), "no schedule has the key"),
        (("push", BYTES, "t", "{}"), "key: "),
        (("push", "k", BYTES, "{}"), "type: "),
        (("push", f"{BYTES}=text"), "key: "),
        (("migrate", BYTES), ""),
        (("list", BYTES), None),
        (("list", f"a{BYTES}*"), None),
        (("list", "--type", BYTES), None),
        (("list", "--label", BYTES), None),
        (("export", "-", "--label", BYTES), None),
    ],
)
def test_bytes_that_are_no_text_are_refused_or_found_nowhere(each_service, arguments, says):
    each_service.add("s1")
    done = each_service.invoke(*arguments)
    if says is None:
        assert (done.exit_code, done.stderr) == (0, "")
    else:
        assert refused(done).startswith(says)


def test_keys_differ_by_case(each_service):
    for key in "s1", "S1":
        assert each_service.invoke("add", key, *DAILY).exit_code == 0

    assert "2 entries." in each_service.invoke("list", "--legacy").output


def test_of_several_keys_to_delete_those_before_a_missing_one_are_gone(service):
    for key in "s1", "s2", "s3":
        service.add(key)

    done = service.invoke("delete", "s1", "nobody", "s3")
    assert (done.exit_code, done.stdout) == (1, "s1: deleted\n")
    assert done.stderr == "Error: no schedule has the key 'nobody'\n"
    assert service.invoke("delete", "s2", "s3").exit_code == 0
    assert "0 entries." in service.invoke("list", "--legacy").output


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("remove", "s1"),
        ("add", "s1"),
        ("add", "s1", "t", "@daily", "{}", "more"),
        ("add", "s1", "t", "@daily", "-d", "soon"),
        ("add", "s1", "t", "@daily", "--catchup", "some"),
        ("add", "s1", "t", "@daily", "--colour", "red"),
        ("delete",),
        ("list", "--yaml"),
        ("run", "--processors", "many"),
    ],
)
def test_wrong_usage_is_exit_status_2_and_says_what_would_be_right(service, arguments):
    done = service.invoke(*arguments)

    assert done.exit_code == 2
    assert "Usage: psched" in done.stderr


def test_wrong_usage_of_the_master_is_exit_status_2(service):
    for arguments in (("--workers", "2"), ("nowhere.py",), ("-c", "psched.yml", "recorder.py")):
        done = service.run(*service.master_command, *arguments)

        assert (done.returncode, done.stdout) == (2, "")
        assert "Usage: psched-master" in done.stderr


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("poll_intervall: 1\n", "psched.yml:1: poll_intervall: unknown setting; did you mean"),
        ("url: sqlite:///x\nalive_time: soon\n", "psched.yml:2: alive_time: must be a whole"),
        ("development: [\n", "psched.yml:2: not YAML"),
        ("url: ${NOT_THERE}\n", "psched.yml:1: url: "),
    ],
)
def test_a_broken_configuration_is_refused_with_file_line_key_and_mend(service, content, says):
    service.config.write_text(content)

    assert says in refused(service.invoke("list", "--legacy"))


def test_every_command_refuses_a_broken_configuration(service):
    service.config.write_text("poll_intervall: 1\n")

    for command in ("init",), ("add", "s1", *DAILY), ("list",), ("delete", "s1"):
        assert "psched.yml:1: poll_intervall: unknown" in refused(service.invoke(*command))
    master = service.run(*service.master_command, "-c", "psched.yml")
    for done, status in (service.psched("check"), 1), (service.psched("run"), 78), (master, 78):
        assert (done.returncode, done.stdout) == (status, "")
        assert "psched.yml:1: poll_intervall: unknown" in done.stderr
        assert done.stderr.count("\n") == 1


def test_a_configuration_that_is_not_there_is_refused(service):
    service.config.unlink()

    assert "psched.yml" in refused(service.invoke("list", "--legacy"))


def test_an_environment_that_the_file_does_not_have_is_refused(service):
    service.config.write_text("production:\n  url: sqlite:///x\n")

    assert "staging" in refused(service.invoke("-e", "staging", "list"))


@pytest.mark.parametrize(
    ("command", "url"),
    [
        (("list",), "mysql://someone:s3cret@127.0.0.1:1/psched"),
        (("init",), "mysql://someone:s3cret@nohost.invalid/psched"),
        (("init",), "oracle://someone:s3cret@127.0.0.1/psched"),
        (("init",), "mysql+nodriver://someone:s3cret@127.0.0.1/psched"),
        (("init",), "mysql://someone:s3cret@127.0.0.1:port/psched"),
        (("init",), "mysql://someone:s3cret@127.0.0.1:1/psched?colour=red"),
    ],
)
def test_a_password_is_never_shown(service, command, url):
    service.configure(url=url)

    assert "s3cret" not in refused(service.invoke(*command))


@pytest.mark.parametrize("command", ["list", "init", "check"])
def test_an_option_of_the_url_that_makes_no_sense_is_refused(service, command):
    service.configure(url="mysql://someone:s3cret@127.0.0.1:1/psched?connect_timeout=abc")

    done = service.psched(command)

    assert done.returncode == 1
    *slow, error = done.stderr.splitlines()
    assert error.startswith("Error: url: ")
    assert "abc" in error
    assert "s3cret" not in done.stderr
    assert [line.partition(";")[0] for line in slow] in ([], ["working on psched"])


def test_a_key_that_is_no_text_is_not_found(service):
    done = service.run(*service.psched_command, "delete", b"\x80".decode(errors="surrogateescape"))

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "Error: no schedule has the key '\\udc80'\n"


def test_a_database_whose_folder_cannot_be_made_is_refused(service):
    service.write("file", "")
    service.configure(url=f"sqlite:///{service.folder}/file/psched.db")

    assert "file" in refused(service.invoke("init"))
    assert "file" in refused(service.invoke("list", "--legacy"))


def test_a_file_that_is_no_database_is_refused(service):
    file = service.write("psched.db", "not a database" * 100)
    service.configure(url=f"sqlite:///{file}")

    assert "not a database" in refused(service.invoke("init"))
    assert "not a database" in refused(service.invoke("list", "--legacy"))


def test_a_missing_table_is_refused_with_the_mend(each_service):
    each_service.configure(table="another")

    for command in ("list",), ("add", "s1", *DAILY), ("delete", "s1"):
        says = refused(each_service.invoke(*command))
        assert says == "the table 'another' does not exist; run `psched init`"
