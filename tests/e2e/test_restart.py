"""HUP and USR1: new code and new settings for what comes, while what runs finishes as it began."""

import re
import shutil
import signal
from pathlib import Path

import pytest

import psched
from support.run_log import completed
from support.waiting import wait_for_end, wait_until

JOBS = """
    from recorder import Recorder, Dispatch as Before

    class Versioned(Recorder):
        def run(self):
            self.note("code", code={code})
            super().run()

    class Dispatch(Before):
        routes = {{**Before.routes, "versioned": Versioned}}
"""


def code_of(run):
    """Which version of the handler's code a run was of."""
    [code] = [note["code"] for note in run.notes if note["event"] == "code"]
    return code


@pytest.fixture
def versioned(service):
    """A service whose handlers are of version 1."""
    service.configure(dispatch="jobs:Dispatch")
    service.write("jobs.py", JOBS.format(code=1))
    return service


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1])
def test_the_next_task_has_new_code_and_settings_while_a_long_one_finishes(versioned, number):
    service = versioned
    service.add("long", "versioned", data={"until": "gate"})
    master = service.start()
    service.runs.wait("long")
    [old] = master.workers()

    service.write("jobs.py", JOBS.format(code=2))
    service.configure(processors=3)
    master.send(number)
    master.wait_for_generation(2)
    service.add("short", "versioned")
    [short] = service.runs.wait("short", completed(1))

    assert code_of(short) == 2
    assert len(master.workers(2)) == 3
    # The long task goes on, in the old generation, which claims nothing more.
    assert master.workers(1) == [old]
    assert not service.runs.runs("long")[0].end
    service.open_gate("gate")
    wait_for_end(old)
    [long] = service.runs.runs("long")
    assert (long.completed, code_of(long)) == (True, 1)
    assert service.row("long").status == "finished"
    assert master.stop() == 0


RELEASE = """
    from pathlib import Path
    from psched.application import Base, Dispatch as Before

    class Versioned(Base):
        def run(self):
            # The second path is relative, and so in the folder that the link leads to.
            for path in self.task.data["out"], "ran":
                Path(path).write_text("{code}")

    class Dispatch(Before):
        routes = {{"versioned": Versioned}}
"""


def released(service, number):
    """Write a release, and let the link lead to it."""
    service.write(f"app/r{number}/lib/jobs.py", RELEASE.format(code=number))
    service.write(f"app/r{number}/log", "")  # for `wait_for_log`, before psched opens it
    shutil.copy(service.config, service.folder / f"app/r{number}")
    link, new = service.folder / "app/current", service.folder / "app/new"
    new.symlink_to(f"r{number}")
    new.replace(link)
    return link


def test_a_restart_follows_a_link_to_releases(service):
    service.configure(dispatch="jobs:Dispatch", load_path="lib", log="log")
    folder, out = service.folder, service.folder / "out"
    link = service.folder = released(service, 1)
    service.env["PWD"] = str(link)
    master = service.start(log="log")
    service.folder = folder

    for number in 2, 3:
        released(service, number)
        shutil.rmtree(folder / f"app/r{number - 1}")
        master.send(signal.SIGHUP)
        master.wait_for_generation(number)  # in the log of the new release
        service.add(f"s{number}", "versioned", data={"out": str(out)})
        service.wait_for_finish(f"s{number}")
        assert out.read_text() == (folder / f"app/r{number}/ran").read_text() == str(number)
    assert f"(load_path): {link}/lib" in master.text

    (link / "log").rename(folder / "app/log")
    master.log = folder / "app/log"
    shutil.rmtree(folder / "app/r3")
    master.send(signal.SIGHUP)
    deleted = f"psched.yml is relative, but the current folder {folder}/app/r3 was deleted"
    master.wait_for_log(f"generation 4 could not be started: {deleted}")
    assert master.stop() == 0


def test_a_restart_changes_what_is_logged_and_where(service):
    service.configure(log=str(service.folder / "first.log"))
    master = service.start(log="first.log")
    first = master.log

    service.configure(log=str(service.folder / "second.log"), log_level="warning")
    master.send(signal.SIGHUP)
    second = service.folder / "second.log"
    wait_until(lambda: master.workers(2), what="the second generation")
    wait_until(lambda: not master.workers(1), what="the end of the first generation")
    told = first.read_text()
    service.add("orphan", "nobodys")
    wait_until(lambda: service.row("orphan").reason, what="the task's failure")
    assert master.stop() == 0

    assert first.read_text() == told
    assert "no handler for the type 'nobodys'" in second.read_text()
    assert "INFO" not in second.read_text()


CANNOT_BE_STARTED = [
    ("psched.yml", "alive_time: [", r"psched\.yml:\d+: not YAML"),
    ("psched.yml", "alive_time: soon", r"psched\.yml:1: alive_time: must be a whole number"),
    ("jobs.py", "def broken(:", r"exited with status 65"),
    ("jobs.py", "import sys; sys.exit(0)", r"exited with status 65"),
    ("jobs.py", "import os; os._exit(0)", r"exited with status 0"),
    ("jobs.py", "import os; os.kill(os.getpid(), 9)", r"was killed by SIGKILL"),
]


def test_what_cannot_be_started_leaves_the_old_generation_at_work(versioned):
    service = versioned
    service.add("long", "versioned", data={"until": "gate"})
    master = service.start()
    service.runs.wait("long")
    [old] = master.workers()

    for count, (file, content, says) in enumerate(CANNOT_BE_STARTED, 1):
        good = (service.folder / file).read_text()
        service.write(file, content)
        master.send(signal.SIGHUP)
        failed = "ERROR +master generation 2 could not be started: (.*)"
        log = master.wait_for_log(failed, count=count)
        assert re.search(f"{says}.*; generation 1 goes on", re.findall(failed, log)[-1])
        assert master.workers() == [old]
        service.write(file, good)
    service.open_gate("gate")
    service.wait_for_finish("long")
    service.add("more", "versioned")
    assert code_of(service.runs.wait("more", completed(1))[0]) == 1

    service.write("jobs.py", JOBS.format(code=2))
    master.send(signal.SIGHUP)
    master.wait_for_generation(2)
    service.add("mended", "versioned")
    assert code_of(service.runs.wait("mended", completed(1))[0]) == 2
    assert [run.end for run in service.runs.runs("long")] == ["returned"]
    assert master.stop() == 0


@pytest.mark.extended
@pytest.mark.monitor
def test_who_has_failed_more_often_than_is_allowed_now_has_lost_no_worker(service):
    service.configure(retry_wait=1)
    service.add("s1", data={"fail": 1000})
    master = service.start()
    service.wait_for_row("s1", lambda row: row.attempt >= 3)

    service.configure(max_attempts=2)
    master.send(signal.SIGHUP)
    ended = service.wait_for_row("s1", lambda row: row.status == "failed")

    why = "gave up after [3-9] attempts, because max_attempts is 2: RecorderError: as it was told"
    assert re.fullmatch(why, ended.reason)
    master.wait_for_log(f"alert, gave_up, s1: it was given up: {why}")
    assert master.stop() == 0


@pytest.mark.extended
def test_an_upgrade_of_psched_itself_needs_a_new_master(service):
    """A worker of a master that was started before would mix the code of two versions."""
    package = Path(
        shutil.copytree(Path(psched.__file__).parent, service.folder / "site" / "psched")
    )
    service.env["PYTHONPATH"] = str(package.parent)
    master = service.start()
    code = package / "stores" / "sql" / "store.py"
    was = code.read_text()

    code.write_text("raise ImportError('a module of another version')")
    master.send(signal.SIGHUP)
    master.wait_for_log("generation 2 could not be started: psched itself was changed")

    said = service.psched("status").stdout
    assert "last restart failed: psched itself was changed on this host" in said
    assert "systemctl restart psched" in said
    service.add("s1")
    service.wait_for_finish("s1")

    # The same code is no upgrade, even if the file is a new one.
    code.unlink()
    code.write_text(was)
    master.send(signal.SIGHUP)
    master.wait_for_generation(2)
    assert master.stop() == 0


def test_a_generation_that_does_not_get_ready_in_time_is_given_up(versioned):
    service = versioned
    master = service.start()
    [old] = master.workers()
    service.configure(start_timeout=8)

    service.write("jobs.py", "import time; time.sleep(600)")
    master.send(signal.SIGHUP)

    master.wait_for_log(r"worker 0 \(gen 2\), pid \d+, not ready for 8 s: killed")
    master.wait_for_log(
        "generation 2 could not be started: .*not ready within 8 s .*; generation 1"
    )
    # It has said where it hangs.
    assert re.search(r'File ".*/jobs.py", line 1 in <module>', master.text)
    service.add("more", "versioned")
    service.runs.wait("more", completed(1))
    assert master.workers() == [old]
    assert master.stop() == 0


def test_many_restarts_at_once_are_few(service):
    service.configure(processors=2)
    service.add("long", data={"until": "gate"})
    master = service.start()
    service.runs.wait("long")

    for _ in range(50):
        master.send(signal.SIGHUP)
        master.send(signal.SIGUSR1)
    master.wait_for_log("generation 2 serves")  # there may be a third in a moment
    service.add("last")
    service.wait_for_finish("last")
    service.open_gate("gate")
    service.wait_for_finish("long")
    wait_until(lambda: len(master.workers()) == 2, what="the end of the old generations")

    generations = re.findall(r"generation (\d+) serves", master.text)
    assert generations == [str(n + 1) for n in range(len(generations))]
    assert len(generations) < 20
    assert [run.end for run in service.runs.runs("long")] == ["returned"]
    assert master.stop() == 0


@pytest.mark.extended
def test_no_more_than_two_generations_leave_at_the_same_time(service):
    master = service.start()
    for generation in 1, 2:
        service.add(f"long {generation}", data={"until": "gate"})
        service.runs.wait(f"long {generation}")
        master.send(signal.SIGHUP)
        master.wait_for_generation(generation + 1)

    # This one has to wait, and is not forgotten.
    service.add("long 3", data={"until": "gate"})
    service.runs.wait("long 3")
    master.send(signal.SIGHUP)
    master.wait_for_log("restart asked for", count=3)
    # The master answers after the step that would begin it.
    service.wait_until_asleep()
    assert len(master.workers()) == 3
    assert "(gen 4)" not in master.text
    service.open_gate("gate")
    master.wait_for_generation(4)

    wait_until(lambda: len(master.workers()) == 1, what="the end of the old generations")
    assert all(run.completed for run in service.runs.runs())
    assert master.stop() == 0


def test_a_hup_to_every_process_of_the_service_is_a_restart_and_costs_no_task(service):
    service.configure(processors=2)
    for key in "one", "two":
        service.add(key, data={"until": "gate"})
    master = service.start()
    service.runs.wait("one")
    service.runs.wait("two")

    master.send_all(signal.SIGHUP)
    master.wait_for_generation(2)
    service.open_gate("gate")

    for key in "one", "two":
        service.wait_for_finish(key)
        assert [run.end for run in service.runs.runs(key)] == ["returned"]
    assert master.stop() == 0
