"""USR2: the log may be renamed at any time, and nothing of it is lost."""

import re
import signal

import pytest

from support.run_log import completed
from support.waiting import wait_for_text, wait_until

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
    assert "printed by after" in log.read_text()
    assert "after says" in log.read_text()
    assert master.stop() == 0


def test_a_log_that_cannot_be_reopened_costs_nothing(logged):
    service, log = logged, logged.folder / "log"
    service.add("long", data={"until": "gate"})
    master = service.start(log="log")
    service.runs.wait("long")
    old = log.rename(log.with_name("log.0"))
    log.mkdir()
    (log / "file").touch()

    master.send(signal.SIGUSR2)
    wait_for_text(old, "cannot reopen the log; going on in the old file")
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
