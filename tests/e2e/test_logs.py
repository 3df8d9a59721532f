"""The command logs: what tasks have printed, and what running tasks print."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from support.following import PRINTS, gated
from support.processes import children, kill, title
from support.waiting import HANG_TIMEOUT, wait_until

pytestmark = pytest.mark.extended


@pytest.fixture
def service(service):
    service.write("prints.py", PRINTS)
    service.configure(dispatch="prints:Printing", concurrency=2, output="both")
    return service


def test_a_finished_attempt_is_shown_with_all_that_its_programs_printed(service):
    service.add("s1", "prints", data={"text": "one\n", "commands": ["echo two", "echo three >&2"]})
    master = service.start()
    service.wait_for_finish("s1")

    shown = service.psched("logs", "s1")

    assert (shown.returncode, shown.stdout) == (0, "one\ntwo\nthree\n")
    assert re.fullmatch(
        r"==> s1, attempt 1 of 2001-09-09 01:46:40 UTC; finished, ended .*; took .* <==\n",
        shown.stderr,
    )
    assert service.psched("logs", "s1", "-f").stdout == shown.stdout
    assert master.stop() == 0
    assert service.psched("logs", "s1").stdout == shown.stdout


@pytest.mark.landing
def test_each_attempt_has_its_own_output(service):
    service.add("s1", "prints", data={"commands": ["echo a"], "fail": 2})
    service.configure(retry_wait=2)  # so that no two attempts start in one second
    service.start()
    service.wait_for_finish("s1")

    lines = service.psched("logs", "s1", "--limit", 9, "--json").stdout.splitlines()

    told = [json.loads(line) for line in lines]
    assert [each["attempt"] for each in told] == [1, 2, 3]
    assert [each["outcome"] for each in told] == ["failed", "failed", "finished"]
    assert [each["text"].splitlines()[0] for each in told] == ["a"] * 3
    assert ["ValueError: as it was told" in each["text"] for each in told] == [True, True, False]
    assert not any("\x1e" in each["text"] for each in told)
    assert {each["scheduled_time"] for each in told} == {1_000_000_000}
    assert {(each["is_live"], each["dropped"]) for each in told} == {(False, 0)}
    one = service.psched("logs", "s1", "--attempt", 2, "--time", 1_000_000_000)
    assert (one.returncode, one.stdout) == (0, told[1]["text"])
    assert "attempt 2 of" in one.stderr
    *rows, _ = service.psched("history", "s1").stdout.splitlines()
    second = " ".join(rows[2].split()[:3])  # its start, unlike the scheduled time
    assert service.psched("logs", "s1", "--time", second).stdout == told[1]["text"]
    several = service.psched("logs", "s1", "--limit", 2)
    assert several.stdout == told[1]["text"] + told[2]["text"]
    assert re.findall(r"attempt (\d)", several.stderr) == ["2", "3"]
    with service.schedules() as schedules:
        outputs = [*schedules["s1"].outputs()]
        assert [each.attempt for each in outputs] == [3, 2, 1]
        assert schedules["s1"].output(attempt=2).text == told[1]["text"]
        assert schedules["s1"].output(attempt=2, time=2) is None


def test_the_output_of_an_extra_run_is_that_of_the_schedule(service):
    service.add("s1", "prints", data={"text": "own\n"}, cron="0 0 1 1 *", next_time=4_000_000_000)
    service.start()
    extra = service.psched("trigger", "s1", "--wait", 60, "--data", '{"text": "extra\\n"}')
    assert extra.returncode == 0, extra.stderr

    shown = service.psched("logs", "s1")

    assert (shown.returncode, shown.stdout) == (0, "extra\n")
    assert re.match(r"==> s1!\w{16}, attempt 1 of .*; finished, ended ", shown.stderr)
    assert service.psched("logs", "s1", "--limit", 3).stdout == "extra\n"
    heading, line, _ = service.psched("history", "s1").stdout.splitlines()
    when = re.match(r"\w{3} \d\d [\d:]{8}", line)[0]
    assert service.psched("logs", "s1", "--time", when).stdout == "extra\n"
    assert heading.startswith("WHEN (UTC)")


@pytest.mark.extended
def test_control_characters_are_visible_unless_raw(service):
    data = {"bytes": (b"\x1b[2Jgone\r\x07\xff\xe2\x80\xae \tend\n").hex()}
    service.add("s1", "prints", data=data, output="history")
    service.start()
    service.wait_for_finish("s1")

    shown = service.psched("logs", "s1").stdout
    raw = subprocess.run(
        [*service.psched_command, "logs", "s1", "--raw"],
        cwd=service.folder, env=service.env, capture_output=True, check=True,
    )  # fmt: skip

    assert shown == "\\x1b[2Jgone\\r\\x07\ufffd\\u202e \tend\n"
    assert raw.stdout == bytes.fromhex(data["bytes"])


@pytest.mark.parametrize("option", [(), ("--raw",), ("-f",)])
@pytest.mark.extended
def test_with_a_closed_standard_output_nothing_is_shown(service, option):
    service.add("s1", "prints", data={"text": "x\n"})
    service.start()
    service.wait_for_finish("s1")
    command = [*service.psched_command, "logs", "s1", *option]

    done = service.run("sh", "-c", '"$@" >&-', "sh", *command)

    assert done.returncode == 0
    assert re.fullmatch(r"==> s1, attempt 1 .* <==\n", done.stderr)


@pytest.mark.landing
def test_values_of_redacted_fields_are_hidden(service):
    service.configure(redact=["password"])
    service.add("s1", "prints", data={"text": "password=geheim\nuser=me\n"})
    service.start()
    service.wait_for_finish("s1")

    assert service.psched("logs", "s1").stdout == "password=[redacted]\nuser=me\n"
    told = json.loads(service.psched("logs", "s1", "--json").stdout)
    assert told["text"] == "password=[redacted]\nuser=me\n"
    assert service.psched("logs", "s1", "--raw").stdout == "password=geheim\nuser=me\n"


@pytest.mark.extended
def test_it_says_why_there_is_no_output(service):
    service.configure(types={"prints": {"output": "service"}})
    service.add("secret", "prints", data={"text": "x\n"})
    service.add("later", "prints", next_time=4_000_000_000)
    service.add("mute", "prints", data={}, output="both")
    service.add("old", "prints", data={"text": "x\n"}, output="both")
    service.add("next", "prints", next_time=4_000_000_000, output="both")
    service.add("unrecorded", "prints", data={"text": "x\n"}, output="both")
    service.start()
    for key in ("secret", "mute", "old", "unrecorded"):
        service.wait_for_finish(key)

    def refused(*arguments):
        done = service.psched("logs", *arguments)
        assert (done.returncode, done.stdout) == (1, ""), done
        assert len(done.stderr.splitlines()) == 1, done.stderr
        return done.stderr

    assert "the setting output is service" in refused("secret")
    assert "the setting output is service" in refused("later")
    assert "next: it has not run yet; its next run is in" in refused("next", "-f")
    with service.sql() as database:  # as a worker without a run history leaves it
        database.execute("delete from psched_runs where key = 'unrecorded'")
        database.execute("delete from psched_output where key = 'unrecorded'")
    assert "unrecorded: no output of it is kept; it is finished" in refused("unrecorded")
    assert "mute: attempt 1 of 2001-09-09 01:46:40 UTC: it has printed nothing" in refused("mute")
    assert "no schedule has the key 'none', and no output of one is kept" in refused("none")
    no_seven = "old: no output of attempt 7 is kept; psched history old shows the attempts"
    assert no_seven in refused("old", "--attempt", 7)
    no_time = "old: no output of the occurrence of 1970-01-01 00:00:07 UTC is kept; psched"
    assert no_time in refused("old", "--time", 7)
    no_both = "old: no output of attempt 2 of 1970-01-01 00:00:07 UTC is kept; psched"
    assert no_both in refused("old", "--time", 7, "--attempt", 2)
    with service.sql() as database:
        database.execute("delete from psched_output")
        database.execute("update psched_runs set ended = ended - 100000000000")
    assert "its output was deleted, because output_keep is" in refused("old")
    with service.sql() as database:
        database.execute("drop table psched_output")
    assert "psched init" in refused("old")


def test_output_outlives_its_schedule(service):
    service.add("s1", "prints", data={"text": "kept\n"})
    service.start()
    service.wait_for_finish("s1")
    with service.schedules() as schedules:
        schedules["s1"].delete()

    assert service.psched("logs", "s1").stdout == "kept\n"


# --- running tasks -------------------------------------------------------------------


@pytest.mark.landing
def test_a_running_task_is_followed_until_it_ends(service, following):
    service.add("s1", "prints", data={"commands": ["echo first"], **gated("a", "b")})
    master = service.start()
    reader = following(service, "-f", "s1")
    reader.wait_for("first\n")
    service.open_gate("a")
    reader.wait_for("a is open\n")
    so_far = service.psched("logs", "s1")
    assert (so_far.returncode, so_far.stdout) == (0, "first\na is open\n")
    assert "running" in so_far.stderr
    told = json.loads(service.psched("logs", "s1", "--json").stdout)
    assert (told["is_live"], told["ended"], told["text"]) == (True, None, so_far.stdout)
    second = following(service, "-f", "s1", out="second")
    second.wait_for("a is open\n")
    service.open_gate("b")

    assert reader.wait() == second.wait() == 0
    expected = r"==> .* running <==\nfirst\na is open\nb is open\nattempt 1: finished after .*\n"
    assert re.fullmatch(expected, reader.text), reader.text
    assert re.fullmatch(expected, second.text), second.text
    assert master.stop() == 0


def test_following_a_task_that_is_due_waits_for_its_start(service, following):
    assert service.psched("push", "t", "prints", json.dumps(gated("gate"))).returncode == 0

    reader = following(service, "-f", "t", runs=False)
    reader.wait_for("t: due, waits for a worker\n")
    service.start()
    reader.wait_for("attempt 1 of")
    service.open_gate("gate")

    assert reader.wait() == 0
    assert "gate is open\n" in reader.text
    assert "attempt 1: finished" in reader.text
    assert "due" not in service.psched("logs", "t", "-f").stderr


def test_a_task_that_ends_at_once_is_shown_to_who_waits_for_its_start(service, following):
    service.psched("push", "t", "prints", '{"text": "short\\n"}')
    reader = following(service, "-f", "t", runs=False)
    reader.wait_for("due")

    service.start()

    assert reader.wait() == 0
    assert "short\n" in reader.text


def test_a_silent_task_is_followed_until_it_ends(service, following):
    service.add("s1", "prints", data={"gates": [["a", ""]]})
    service.start()
    service.wait_for_row("s1", lambda seen: seen.status == "running")
    so_far = service.psched("logs", "s1")
    assert (so_far.returncode, so_far.stdout) == (0, "")
    reader = following(service, "-f", "s1")
    reader.wait_for("running")
    service.open_gate("a")

    assert reader.wait() == 0
    assert re.fullmatch(r"==> .* <==\nattempt 1: finished after .*\n", reader.text)


def test_a_reader_that_stands_still_is_cut_off_and_delays_nobody(service, following):
    data = {"gates": [["a", "x" * 1000 + "\n"], ["b", "end\n"]], "times": 5000}
    service.add("s1", "prints", data=data)
    service.add("s2", "prints", data=gated("a", "c"))
    master = service.start()
    service.wait_for_row("s1", lambda seen: seen.status == "running")
    read, write = os.pipe()
    still = subprocess.Popen(
        [*service.psched_command, "logs", "-f", "s1", "--raw"],
        cwd=service.folder, env=service.env, stdout=write, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    os.close(write)
    assert "running" in still.stderr.readline()
    reader = following(service, "-f", "s2")
    reader.wait_for("running")
    service.open_gate("a")
    reader.wait_for("a is open\n")
    service.open_gate("b")
    service.wait_for_finish("s1")
    service.open_gate("c")
    assert reader.wait() == 0

    with os.fdopen(read, "rb") as pipe:
        seen = len(pipe.read())
    assert seen < 2_000_000
    said = still.communicate(timeout=HANG_TIMEOUT)[1]
    assert "bytes before this are left out" in said or "too slowly" in said
    assert master.stop() == 0
    assert "Traceback" not in master.text


def test_a_restart_does_not_disturb_a_reader(service, following):
    service.add("s1", "prints", data=gated("a", "b"))
    master = service.start()
    reader = following(service, "-f", "s1")
    reader.wait_for("running")
    master.send(signal.SIGHUP)
    master.wait_for_log("generation 2 serves")
    service.open_gate("a")
    reader.wait_for("a is open\n")
    service.open_gate("b")

    assert reader.wait() == 0
    assert "a is open\nb is open\nattempt 1: finished" in reader.text


def test_a_reader_is_told_that_the_worker_was_killed(service, following):
    service.add("s1", "prints", data=gated("a", "b"))
    master = service.start()
    reader = following(service, "-f", "s1")
    reader.wait_for("running")
    service.open_gate("a")
    reader.wait_for("a is open\n")
    [worker] = master.workers()
    kill(worker)

    assert reader.wait() == 1
    assert reader.text.count("a is open\n") == 1
    assert reader.text.endswith(
        "Error: s1: the worker that ran it has ended; psched history says what becomes of it\n"
    )


def test_a_reader_that_was_killed_leaves_nothing_behind(service, following):
    service.add("s1", "prints", data=gated("a", "b"))
    master = service.start()
    reader = following(service, "-f", "s1")
    reader.wait_for("running")
    descriptors = Path(f"/proc/{master.pid}/fd")
    before = len([*descriptors.iterdir()])
    reader.send(signal.SIGKILL)
    reader.wait()
    wait_until(lambda: len([*descriptors.iterdir()]) < before, what="a closed socket")
    service.open_gate("a")
    service.open_gate("b")
    service.wait_for_finish("s1")
    assert service.psched("logs", "s1").stdout == "a is open\nb is open\n"


@pytest.mark.landing
def test_a_collector_that_is_killed_leaves_a_gap_that_is_told(service, following):
    service.add("s1", "prints", data=gated("a", "b"))
    master = service.start()
    reader = following(service, "-f", "s1")
    reader.wait_for("running")
    service.open_gate("a")
    reader.wait_for("a is open\n")
    [worker] = master.workers()
    [collector] = [pid for pid in children(worker) if "collector" in title(pid)]
    kill(collector)
    master.wait_for_log("the collector of output died")
    service.open_gate("b")

    assert reader.wait() == 0
    shown = reader.text.partition("<==\n")[2]
    assert re.fullmatch(
        r"a is open\noutput is lost here\nb is open\nattempt 1: finished after .*\n", shown
    ), shown


@pytest.mark.parametrize("setting", ["raw", "none"])
def test_output_that_nobody_collects_is_named(service, setting):
    service.add("s1", "prints", data=gated("a"), output=setting)
    service.start()
    service.wait_for_row("s1", lambda seen: seen.status == "running")
    shown = service.psched("logs", "-f", "s1")
    assert (shown.returncode, shown.stdout) == (1, "")
    assert f"its output is not kept, because the setting output is {setting}" in shown.stderr
    service.open_gate("a")
    service.wait_for_finish("s1")


@pytest.mark.extended
def test_output_that_is_not_stored_can_be_followed(service, following):
    service.add("s1", "prints", data=gated("a"), output="service")
    service.start()
    reader = following(service, "-f", "s1")
    reader.wait_for("running")
    service.open_gate("a")
    assert reader.wait() == 0, reader.text
    assert "a is open\n" in reader.text
    assert "the setting output is service" in service.psched("logs", "s1").stderr


def test_a_store_in_memory_has_logs(service):
    service.configure(url="memory:")
    service.start()
    pushed = service.psched("push", "t", "prints", '{"text": "hello\\n"}', "--wait")
    assert pushed.returncode == 0
    assert service.psched("logs", "t").stdout == "hello\n"
