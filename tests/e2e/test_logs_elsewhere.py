"""The command logs for a task that runs on another host: its worker writes the output to the store.

The command finds no master, because it looks for them in another folder, as on another host.
"""

import json
import re
import signal

import pytest

from support.following import PRINTS, gated
from support.processes import children, kill, title
from support.waiting import wait_until

pytestmark = pytest.mark.extended


@pytest.fixture
def service(service):
    return printing(service)


def printing(service):
    """A service whose tasks print. What is started by `leave` later is on another host."""
    service.write("prints.py", PRINTS)
    service.configure(dispatch="prints:Printing", concurrency=2, output="both")
    return service


def leave(service):
    """Have the commands that follow run on another host."""
    service.env["RUNTIME_DIRECTORY"] = str(service.folder / "elsewhere")


def start(service, key="s1", **data):
    """Start a master that runs a task; go to another host."""
    service.add(key, "prints", data=data)
    master = service.start()
    service.wait_for_row(key, lambda seen: seen.status == "running")
    leave(service)
    return master


def output_rows(service, key="s1"):
    with service.sql() as database:
        query = "select is_live, asked, output from psched_output where key = ?"
        return database.execute(query, (key,)).fetchall()


END = r"attempt 1: finished after .*\n"


def test_a_task_of_another_host_is_followed_until_it_ends(service, following):
    start(service, commands=["echo first"], **gated("a", "b", "c"))
    reader = following(service, "-f", "s1")
    reader.wait_for("first\n")
    service.open_gate("a")
    reader.wait_for("a is open\n")
    so_far = service.psched("logs", "s1")
    assert (so_far.returncode, so_far.stdout) == (0, "first\na is open\n"), so_far
    assert re.fullmatch(r"==> s1, attempt 1 of .*; running <==\n", so_far.stderr)
    told = json.loads(service.psched("logs", "s1", "--json").stdout)
    assert (told["is_live"], told["ended"], told["text"]) == (True, None, so_far.stdout)
    service.open_gate("b")
    reader.wait_for("b is open\n")
    second = following(service, "-f", "s1", out="second")
    second.wait_for("b is open\n")
    service.open_gate("c")

    assert reader.wait() == second.wait() == 0
    expected = rf"==> .* running <==\nfirst\na is open\nb is open\nc is open\n{END}"
    assert re.fullmatch(expected, reader.text), reader.text
    assert re.fullmatch(expected, second.text), second.text
    [(is_live, asked, _)] = output_rows(service)
    assert (is_live, asked) == (0, 0)


@pytest.mark.parametrize(
    "database",
    [
        pytest.param("mariadb", marks=pytest.mark.mariadb),
        pytest.param("postgresql", marks=pytest.mark.postgresql),
        pytest.param("redis", marks=pytest.mark.redis),
    ],
    indirect=True,
)
def test_a_server_passes_on_what_is_printed(each_service, following):
    service = printing(each_service)
    start(service, commands=["echo first"], **gated("a", "b"))
    reader = following(service, "-f", "s1")
    reader.wait_for("first\n")
    service.open_gate("a")
    reader.wait_for("a is open\n")
    assert service.psched("logs", "s1").stdout == "first\na is open\n"
    service.open_gate("b")
    assert reader.wait() == 0
    expected = rf"==> .* running <==\nfirst\na is open\nb is open\n{END}"
    assert re.fullmatch(expected, reader.text), reader.text


def test_what_a_task_has_printed_before_is_shown_at_once(service):
    start(service, commands=["echo first"], **gated("a"))
    so_far = service.psched("logs", "s1")
    assert (so_far.returncode, so_far.stdout) == (0, "first\n"), so_far
    assert "running" in so_far.stderr


def test_a_silent_task_is_followed_until_it_ends(service, following):
    start(service, gates=[["a", ""]])
    so_far = service.psched("logs", "s1")
    assert (so_far.returncode, so_far.stdout) == (0, ""), so_far
    reader = following(service, "-f", "s1")
    reader.wait_for("running")
    service.open_gate("a")

    assert reader.wait() == 0
    assert re.fullmatch(rf"==> .* <==\n{END}", reader.text), reader.text
    assert "it has printed nothing" in service.psched("logs", "s1").stderr


def test_the_rest_of_a_task_that_ends_before_its_worker_answers_is_shown(service, following):
    start(service, commands=["echo first"], **gated("a"))
    reader = following(service, "-f", "s1")
    reader.wait_for("running")
    service.open_gate("a")

    assert reader.wait() == 0
    assert re.fullmatch(rf"==> .* <==\nfirst\na is open\n{END}", reader.text), reader.text


def test_what_fell_out_of_the_tail_is_counted(service, following):
    service.configure(output_limit=1000)
    line = "x" * 99 + "\n"
    start(service, gates=[["a", "first\n"], ["b", line], ["c", "last\n"]])
    reader = following(service, "-f", "s1")
    service.open_gate("a")
    reader.wait_for("first\n")
    service.add("flood", "prints", data={"gates": [["c", line]], "times": 5000})
    service.wait_for_row("flood", lambda seen: seen.status == "running")
    flood = following(service, "-f", "flood", out="flooded")
    flood.wait_for("running")
    service.open_gate("b")
    service.open_gate("c")

    assert reader.wait() == flood.wait() == 0
    expected = rf"==> .* <==\nfirst\n{line}last\n{END}"
    assert re.fullmatch(expected, reader.text), reader.text
    expected = rf"==> .* <==\n499,000 bytes before this are left out\n({line}){{10}}{END}"
    assert re.fullmatch(expected, flood.text), flood.text


def test_a_killed_worker_is_told_and_what_it_has_written_stays(service, following):
    master = start(service, commands=["echo first"], **gated("a", "b"))
    reader = following(service, "-f", "s1")
    service.open_gate("a")
    reader.wait_for("a is open\n")
    master.send(signal.SIGWINCH)  # no other worker begins the task again
    [worker] = master.workers()
    kill(worker)

    assert reader.wait() == 1
    assert reader.text.endswith(
        "Error: s1: the worker that ran it has ended; psched history says what becomes of it\n"
    ), reader.text
    assert reader.text.count("a is open\n") == 1
    master.stop()
    shown = service.psched("logs", "s1")
    assert (shown.returncode, shown.stdout) == (0, "first\na is open\n"), shown
    assert re.fullmatch(
        r"==> s1, attempt 1 of .*; lost; written .* before its worker was lost;"
        r" what followed is not known <==\n",
        shown.stderr,
    )


def test_a_collector_that_is_killed_leaves_a_gap_that_is_told(service, following):
    master = start(service, **gated("a", "b", "c"))
    reader = following(service, "-f", "s1")
    service.open_gate("a")
    reader.wait_for("a is open\n")
    [worker] = master.workers()
    [collector] = [pid for pid in children(worker) if "collector" in title(pid)]
    kill(collector)
    master.wait_for_log("the collector of output died")
    service.open_gate("b")
    reader.wait_for("b is open\n")
    service.open_gate("c")

    assert reader.wait() == 0
    shown = reader.text.partition("<==\n")[2]
    expected = rf"a is open\noutput is lost here\nb is open\nc is open\n{END}"
    assert re.fullmatch(expected, shown), shown


def test_a_worker_that_does_not_answer_is_told(service):
    master = start(service, **gated("a"))
    [worker] = master.workers()
    with service.sql() as database:
        # The worker cannot write to the row, as if it were of an older version.
        database.execute(
            "create trigger mute before update of output on psched_output"
            " begin select raise(abort, 'no'); end"
        )
    shown = service.psched("logs", "s1")
    assert (shown.returncode, shown.stdout) == (1, "")
    assert re.fullmatch(
        r"Error: s1: attempt 1 of 2001-09-09 01:46:40 UTC is running on another host, and has"
        r" not answered for 12 s: its worker hangs, is of an older version, or does not reach the"
        r" store\n",
        shown.stderr,
    )
    # That has no effect on the task.
    assert master.workers() == [worker]
    service.open_gate("a")
    service.wait_for_finish("s1")


def test_a_user_who_may_not_write_is_told(service):
    start(service, **gated("a"))
    with service.sql() as database:
        database.execute(
            "create trigger refuse before insert on psched_output"
            " begin select raise(abort, 'read only'); end"
        )
    shown = service.psched("logs", "-f", "s1")
    assert (shown.returncode, shown.stdout) == (1, "")
    assert "psched logs cannot ask for its output, because the store refuses to write" in (
        shown.stderr
    )
    assert "read only" in shown.stderr


@pytest.mark.parametrize("setting", ["raw", "none", "service"])
def test_output_that_is_not_kept_is_named(service, setting):
    service.configure(output=setting)
    start(service, **gated("a"))
    shown = service.psched("logs", "-f", "s1")
    assert (shown.returncode, shown.stdout) == (1, "")
    assert "attempt 1 of 2001-09-09 01:46:40 UTC is running on another host" in shown.stderr
    assert f"its output is not kept, because the setting output is {setting}" in shown.stderr
    on_its_host = "psched logs shows it on the host that runs the task" in shown.stderr
    assert on_its_host is (setting == "service")
    assert output_rows(service) == []


def test_when_nobody_asks_nothing_is_written(service, following):
    start(service, commands=["echo first"], **gated("a", "b"))
    # The worker asks who is read for all of its tasks at once: what one reader is shown tells that
    # it has asked for the others, too.
    service.add("s2", "prints", data={"commands": ["echo second"], **gated("x", "y", "z")})
    other = following(service, "-f", "s2", out="other")
    other.wait_for("second\n")
    assert output_rows(service) == []
    reader = following(service, "-f", "s1")
    reader.wait_for("first\n")
    reader.send(signal.SIGKILL)
    reader.wait()
    with service.sql() as database:
        query = "update psched_output set asked = 1 where key = 's1' returning output"
        [(before,)] = database.execute(query)
    service.open_gate("a")
    for gate in "x", "y":
        service.open_gate(gate)
        other.wait_for(f"{gate} is open\n")
    assert [each[2] for each in output_rows(service)] == [before]
    service.open_gate("z")
    assert other.wait() == 0
    service.open_gate("b")
    service.wait_for_finish("s1")
    wait_until(lambda: [each[0] for each in output_rows(service)] == [0], what="the whole output")
    assert service.psched("logs", "s1").stdout == "first\na is open\nb is open\n"


MARKS = "FROM psched WHERE status IN ('"
"""In the question whether running tasks are to be stopped, which a worker asks at each poll."""


@pytest.fixture
def statements(database, tmp_path):
    """A function that returns all statements that the server has received since the beginning."""
    path, query = tmp_path / "statements", database.server.query
    path.touch(0o666)
    path.chmod(0o666)
    tmp_path.chmod(0o777)
    query(f"SET GLOBAL general_log_file = '{path}'")
    query("SET GLOBAL general_log = 1")
    yield path.read_text
    query("SET GLOBAL general_log = 0")


@pytest.mark.mariadb
@pytest.mark.parametrize("database", ["mariadb"], indirect=True)
def test_without_a_running_task_whose_output_is_kept_no_statement_is_sent(each_service, statements):
    """Who reads output is asked by the only statement that compares the column ``asked``."""
    service = printing(each_service)
    service.add("s1", "prints", data=gated("a"), output="raw")
    service.add("later", "prints", next_time=4_000_000_000)
    service.configure(poll_interval=0.2)
    service.start()
    service.wait_for_row("s1", lambda seen: seen.status == "running")
    # At least 0.2 s pass from one to the next, so that who reads is asked in between, or never.
    polls = statements().count(MARKS)
    wait_until(lambda: statements().count(MARKS) > polls + 35, what="many polls")
    assert "asked >" not in statements()
    service.open_gate("a")
    service.wait_for_finish("s1")
    service.add("s2", "prints", data=gated("b"))
    wait_until(lambda: "asked >" in statements(), what="a question who reads output")
    assert not re.search(r"(INSERT INTO|UPDATE) `?psched_output", statements())
