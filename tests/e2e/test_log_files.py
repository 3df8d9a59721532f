"""USR2: the log may be renamed at any time, and nothing of it is lost."""

import json
import re
import signal
from datetime import datetime

import pytest

from psched.base.clock import SystemClock
from support.run_log import completed
from support.waiting import wait_for_text, wait_until

CLOCK = SystemClock()

JOBS = """
    import logging, os, time
    from pathlib import Path
    from recorder import Recorder, Dispatch as Before

    class Talker(Recorder):
        def run(self):
            self.note("start", worker=self.worker)
            print("printed by", self.task.key)
            number = 0
            while not Path(__file__).with_name(self.task.data["until"]).exists():
                number += 1
                logging.info("%s says %d, %s", self.task.key, number, "." * 200)
                time.sleep(0.002)
            self.note("end", how="returned", said=number)

    class Dispatch(Before):
        routes = {**Before.routes, "talker": Talker}
"""


@pytest.fixture
def logged(service):
    """A service that logs into a file, and whose handlers do so as well."""
    service.configure(dispatch="jobs:Dispatch", log=str(service.folder / "log"))
    service.write("jobs.py", JOBS)
    return service


def test_all_processes_go_on_in_the_new_file_and_no_line_is_lost(logged):
    service, log = logged, logged.folder / "log"
    service.configure(processors=2)
    for key in "one", "two":
        service.add(key, "talker", data={"until": "gate"})
    master = service.start(log="log")
    for key in "one", "two":
        wait_for_text(log, f"{key} says 1,")

    for number in range(3):
        old = log.rename(log.with_name(f"log.{number}"))
        master.send(signal.SIGUSR2)
        for key in "one", "two":
            wait_for_text(log, f"{key} says ")
        settled = old.read_text()
    # What was not there to be told when the file was renamed is in the new one.
    service.add("three", "talker", data={"until": "gate"})
    service.open_gate("gate")
    for key in "one", "two", "three":
        service.wait_for_finish(key)
    assert master.stop() == 0

    files = [log.with_name(f"log.{number}") for number in range(3)] + [log]
    lines = "".join(file.read_text() for file in files).splitlines()
    for key in "one", "two":
        [run] = service.runs.runs(key)
        said = [
            int(n) for line in lines for n in re.findall(rf"{key} says (\d+), \.{{200}}$", line)
        ]
        assert said == [*range(1, run.notes[-1]["said"] + 1)]
    assert files[2].read_text() == settled
    assert "master stopped" in files[3].read_text()
    assert re.search(r"worker \d \[three.*finished", files[3].read_text())


def test_a_task_that_is_begun_after_the_reopening_logs_to_the_new_file(logged):
    service, log = logged, logged.folder / "log"
    service.add("before")
    master = service.start(log="log")
    service.wait_for_finish("before")

    old = log.rename(log.with_name("log.0"))
    master.send(signal.SIGUSR2)
    wait_until(log.exists, what="the new log")
    # It runs in a process that has waited for it since before the log was reopened.
    service.add("after", "talker", data={"until": "gate"})
    wait_until(lambda: "after says" in log.read_text() + old.read_text(), what="a line of the task")
    service.open_gate("gate")
    service.wait_for_finish("after")

    assert "after" not in old.read_text()
    assert "after: printed by after" in log.read_text()
    assert "after says" in log.read_text()
    assert master.stop() == 0


@pytest.mark.extended
def test_a_log_that_cannot_be_reopened_costs_nothing(logged):
    service, log = logged, logged.folder / "log"
    service.add("long", data={"until": "gate"})
    master = service.start(log="log")
    service.runs.wait("long")
    old = log.rename(log.with_name("log.0"))
    log.mkdir()
    (log / "file").touch()

    master.send(signal.SIGUSR2)
    wait_for_text(old, "; the next lines go to the same place as before")
    service.open_gate("gate")
    service.wait_for_finish("long")

    assert service.runs.runs("long")[0].completed
    assert master.stop() == 0
    assert "master stopped" in old.read_text()


def test_a_usr2_to_every_process_of_the_service_costs_no_task(logged):
    service, log = logged, logged.folder / "log"
    service.add("long", data={"until": "gate"})
    master = service.start(log="log")
    [worker] = master.workers()
    service.runs.wait("long")
    log.rename(log.with_name("log.0"))

    master.send_all(signal.SIGUSR2)
    wait_until(log.exists, what="the new log")
    service.open_gate("gate")
    service.wait_for_finish("long")

    assert service.runs.wait("long", completed(1))[0].attempt == 1
    assert master.workers() == [worker]
    assert master.stop() == 0
    assert "master stopped" in log.read_text()


@pytest.mark.extended
def test_every_line_says_when_who_and_which_occurrence(logged):
    service = logged
    service.write(
        "jobs.py",
        """
        import logging
        from recorder import Dispatch as Before

        def talk(task):
            logging.getLogger("mine").warning("forged\\n2026-01-01 line\\x1b[2J")

        class Dispatch(Before):
            routes = {"talk": talk}
        """,
    )
    service.add("s1", "talk")
    master = service.start(log="log")
    service.wait_for_finish("s1")
    assert master.stop() == 0

    when = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z \[\d+\] (INFO   |WARNING|ERROR  ) "
    who = r"(master|worker 0|task)"
    lines = master.text.splitlines()
    heads = [line for line in lines if re.match(f"{when}{who} ", line)]
    # Only what a line goes on with is indented.
    assert [line for line in lines if line not in heads] == ["    2026-01-01 line\\x1b[2J"]
    about = [line for line in lines if " [s1.1000000000] " in line]
    assert [re.sub(f"^{when}", "", line).split(" [")[0] for line in about] == [
        "worker 0", "task", "worker 0",
    ]  # fmt: skip


FAILING = """
    import sys
    from recorder import Dispatch as Before

    def fail(task):
        print("printed by", task.key, flush=True)
        raise ValueError("no")

    class Dispatch(Before):
        routes = {"fail": fail}
"""


@pytest.mark.parametrize(
    ("output", "shown"), [("both", "s1: printed by s1"), ("raw", "printed by s1")]
)
def test_in_the_journal_log_lines_have_priorities_and_what_tasks_print_has_no_time(
    service, output, shown
):
    service.configure(dispatch="jobs:Dispatch", output=output)
    service.write("jobs.py", FAILING)
    stream = service.write("master.log", "").stat()
    service.env["JOURNAL_STREAM"] = f"{stream.st_dev}:{stream.st_ino}"
    service.add("s1", "fail")

    master = service.start(log="master.log")
    master.wait_for_log("failed after")
    assert master.stop() == 0

    lines = [line for line in master.text.splitlines() if line != shown]
    assert len(lines) == len(master.text.splitlines()) - 1
    assert all(re.match(r"<[34]>    |<[3-7]>(INFO   |WARNING|ERROR  ) \w", line) for line in lines)
    assert "<6>INFO    master stopped" in lines
    assert any(line.startswith("<3>    ValueError: no") for line in lines)


@pytest.mark.extended
def test_what_tasks_print_has_utc_times_as_the_log_has(service):
    service.env["TZ"] = "Asia/Tokyo"
    service.add("s1", "exec", data={"command": ["echo", "printed"]})
    before = int(CLOCK.wall())
    master = service.start()
    service.wait_for_finish("s1")

    [shown] = re.findall(r"^(\S+Z) s1: printed$", master.text, re.MULTILINE)
    printed = datetime.strptime(shown, "%Y-%m-%dT%H:%M:%S%z")
    assert before <= printed.timestamp() <= CLOCK.wall()


def test_in_the_journal_what_prevents_a_start_is_an_error(service):
    service.configure(retry_wait="soon", alive_time="long")
    stream = service.write("master.log", "").stat()
    service.env["JOURNAL_STREAM"] = f"{stream.st_dev}:{stream.st_ino}"
    master = service.start(log="master.log", generation=0)
    assert master.wait() == 78
    lines = master.text.splitlines()
    assert len(lines) > 1
    assert all(line.startswith("<3>") for line in lines)


@pytest.mark.extended
def test_all_processes_log_json_until_the_setting_changes(logged):
    service = logged
    service.configure(log_format="json", log_level="debug", retry_wait=600)
    service.write("jobs.py", FAILING)
    service.add("s1", "fail")
    master = service.start(log="log")
    master.wait_for_log("failed after")
    service.configure(log_format="text")
    master.send(signal.SIGHUP)
    master.wait_for_log(r"INFO    master .*generation 2 serves")
    assert master.stop() == 0

    lines = [line for line in master.text.splitlines() if line.startswith("{")]
    objects = [json.loads(line) for line in lines]
    assert {each["process"] for each in objects} >= {"master", "worker 0", "task"}
    [failed] = [each for each in objects if "traceback" in each]
    assert failed["traceback"].endswith("ValueError: no")
    assert (failed["level"], failed["key"]) == ("error", "s1")
    assert failed["occurrence"] == "s1.1000000000"


@pytest.mark.extended
def test_verbose_shows_claims_extends_and_settles_and_info_does_not(service):
    service.configure(alive_time=6)
    service.add("long", data={"until": "gate"})
    master = service.start(*service.master_command, "-c", service.config.name, "--verbose")
    master.wait_for_log(r"DEBUG   worker 0 claimed 1 in \d+\.\d ms: long\n")
    master.wait_for_log(r"DEBUG   worker 0 extended 1 in \d+\.\d ms: long\n")
    service.open_gate("gate")
    master.wait_for_log(r"DEBUG   worker 0 settled 1 in \d+\.\d ms: long\n")
    assert master.stop() == 0

    service.add("next")
    master = service.start()
    service.wait_for_finish("next")
    assert master.stop() == 0
    assert "DEBUG" not in master.text
