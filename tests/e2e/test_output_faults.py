"""Captured output under load and faults: it delays no other task, and what is lost is told."""

import json
import os
import re
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from support.cgroups import own_cgroup
from support.disks import small_disk
from support.processes import children, kill, runners, title
from support.run_log import completed
from support.waiting import PATIENCE, has_ended, wait_for_text, wait_until

pytestmark = pytest.mark.extended

JOBS = """
    import os
    import time
    from pathlib import Path

    from psched.errors import ProcessStopError
    from recorder import Dispatch as Before
    from recorder import Recorder

    FOLDER = Path(__file__).parent


    class Flood(Recorder):
        def run(self):
            # 10,000 lines per second, until the gate is open.
            self.note("start", worker=self.worker)
            begun, printed = time.monotonic(), 0
            while not (FOLDER / "gate").exists():
                due = min(int((time.monotonic() - begun) * 10_000), printed + 1000)
                lines = b"".join(b"line %d of many\\n" % n for n in range(printed, due))
                while lines:
                    lines = lines[os.write(1, lines):]
                printed = due
                time.sleep(0.01)
            self.note("end", how="returned", printed=printed)


    class Prints(Recorder):
        def run(self):
            self.note("start", worker=self.worker)
            print("before", self.task.attempt)
            while not (FOLDER / "gate").exists():
                time.sleep(0.01)
            print("after", self.task.attempt)
            self.note("end", how="returned")


    class Counts(Recorder):
        def run(self):
            self.note("start", worker=self.worker)
            number = 0
            try:
                while not (FOLDER / "gate").exists():
                    number += 1
                    print("number", number)
                    time.sleep(0.002)
            except ProcessStopError:
                print("last words after", number)
                raise
            finally:
                self.note("end", how="returned", printed=number)


    def says(task):
        print("said by", task.key)


    class Dispatch(Before):
        routes = {
            **Before.routes,
            "flood": Flood,
            "prints": Prints,
            "counts": Counts,
            "says": says,
        }
"""


@pytest.fixture
def service(service):
    service.write("jobs.py", JOBS)
    service.configure(dispatch="jobs:Dispatch", output="both")
    return service


def start_into(service, target):
    """Start a master whose standard output and standard error lead elsewhere."""
    command = [*service.master_command, "-c", service.config.name]
    script = f'exec "$@" >>{target} 2>&1'
    master = service.start("/bin/sh", "-c", script, "sh", *command, generation=0)
    wait_until(master.workers, what="a worker")
    return master


def collectors(master):
    return [
        pid
        for worker in master.workers()
        for pid in children(worker)
        if title(pid) == "psched collector"
    ]


def left_collectors(master):
    return [pid for pid in master.descendants if title(pid) == "psched collector"]


# --- load ------------------------------------------------------------------------------------


def check_that_others_start(service, *, every=4, single=3):
    """Check that tasks start in time while another one prints; end that one.

    The printing task ends only when all others have started, so the order of events decides, and
    not the speed of the machine.
    """
    service.runs.wait("flood")
    with service.schedules() as schedules:
        first = int(schedules.now()) + 1
        schedules.add("every", "recorder", cron="@every 1", next_time=first)
    for number in range(single):
        service.add(f"single{number}")
        service.wait_for_finish(f"single{number}")
    runs = service.runs.wait("every", completed(every))
    [flood] = service.runs.runs("flood")
    assert flood.end is None, "the flood goes on"
    with service.schedules() as schedules:
        schedules["every"].delete()
    # None was left out.
    times = [run.scheduled_time for run in runs]
    assert times == [*range(first, first + len(times))]
    service.open_gate("gate")
    service.wait_for_finish("flood")


def check_flood(service):
    """Check that the end of the flood is kept, and the rest counted."""
    [run] = service.runs.runs("flood")
    printed = run.notes[-1]["printed"]
    with service.schedules() as schedules:
        output = wait_until(schedules["flood"].output, what="its output")
    assert output.text.endswith(f"line {printed - 1} of many\n")
    whole = sum(len(f"line {number} of many\n") for number in range(printed))
    assert (len(output.raw), output.dropped) == (65536, whole - 65536)


@pytest.mark.parametrize("processors", [1, 2])
def test_a_task_that_prints_much_delays_no_other(service, processors):
    service.configure(processors=processors, concurrency=2)
    service.add("flood", "flood")
    master = service.start()

    check_that_others_start(service)

    check_flood(service)
    assert master.stop() == 0
    [run] = service.runs.runs("flood")
    # What the service's reader was too slow for is left out, and every line of it is counted.
    left_out = map(int, re.findall(r"psched: (\d+) lines of output are left out", master.text))
    assert master.text.count(" of many\n") + sum(left_out) == run.notes[-1]["printed"]


@pytest.mark.parametrize("log", [None, "log"])
def test_a_reader_of_the_service_that_stands_still_delays_no_task(service, log):
    service.configure(concurrency=2, log=log and str(service.folder / log))
    service.add("flood", "flood")
    fifo = service.folder / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
    try:
        master = start_into(service, fifo)

        check_that_others_start(service)

        check_flood(service)
        # Nobody has made the pipe non-blocking for all who have it.
        [worker] = master.workers()
        for pid in master.pid, worker:
            for number in 1, 2:
                flags = Path(f"/proc/{pid}/fdinfo/{number}").read_text()
                assert not int(re.search(r"flags:\t(\d+)", flags)[1], 8) & os.O_NONBLOCK
        # Somebody reads again, and is told what is missing.
        read = bytearray()

        def told():
            with suppress(BlockingIOError):
                while chunk := os.read(reader, 2**20):
                    read.extend(chunk)
            wanted = [b"lines of output are left out here"]
            wanted += [b"lines of the log are left out here"] if log is None else []
            return all(each in read for each in wanted)

        def said_more():
            service.add(f"prints{len(read)}", "prints")
            service.wait_for_finish(f"prints{len(read)}")
            return told()

        wait_until(said_more, what="notes about missing lines")
        master.send(signal.SIGTERM)
        assert master.wait() == 0
        told()
        assert b"master stopped" in (read if log is None else (service.folder / log).read_bytes())
    finally:
        os.close(reader)


@pytest.mark.parametrize("log", [None, "log"])
def test_a_full_disk_below_the_services_output_delays_no_task(service, log):
    service.configure(concurrency=2, log=log and str(service.folder / log))
    service.add("flood", "flood")
    master = start_into(service, "/dev/full")

    check_that_others_start(service)

    check_flood(service)
    assert master.stop() == 0


def test_a_full_disk_below_the_log_delays_no_task(service, tmp_path):
    with small_disk(tmp_path) as (disk, leave):
        leave(1)
        log = disk / "log"
        service.configure(concurrency=2, log=str(log))
        service.add("flood", "flood")
        master = start_into(service, log)
        service.runs.wait("flood")
        wait_until(lambda: os.statvfs(disk).f_bavail == 0, timeout=3 * PATIENCE, what="a full disk")

        check_that_others_start(service)

        check_flood(service)
        # When there is room again, lines follow, and how many are missing is told.
        leave(50)
        service.add("later", "prints")
        service.wait_for_finish("later")
        assert master.stop() == 0
        text = log.read_text()
        assert "lines of output are left out here" in text
        assert re.search(r"^\S+ later: before 1$", text, re.MULTILINE)
        assert "master stopped" in text


REFUSES = """
    create trigger full before insert on psched_output when length(new.output) > 100
    begin select raise(fail, 'database or disk is full'); end
"""


def test_output_that_the_store_does_not_take_delays_no_task_and_is_told(service):
    service.configure(concurrency=2)
    with service.sql() as database:
        database.execute(REFUSES)
    service.add("flood", "flood")
    master = service.start()
    before = json.loads(service.psched("status", "--json").stdout)["workers"][0]
    assert "lost_outputs" not in before
    assert "the output of" not in service.psched("status").stdout

    check_that_others_start(service)

    master.wait_for_log("the output of tasks is lost: .*disk is full")

    def told():
        [worker] = json.loads(service.psched("status", "--json").stdout)["workers"]
        return worker.get("lost_outputs")

    assert wait_until(told, what="the loss") == 1
    assert "    the output of 1 attempts could not be written\n" in service.psched("status").stdout
    # In place of the output, a note is stored.
    with service.schedules() as schedules:
        kept = wait_until(schedules["flood"].output, what="a note")
        assert (kept.raw, kept.dropped) == (b"", None)
    shown = service.psched("logs", "flood")
    assert (shown.returncode, shown.stdout) == (0, "")
    assert "output is lost here" in shown.stderr
    assert master.stop() == 0


# --- deaths ----------------------------------------------------------------------------------


def started(service, key="prints", attempt=1):
    """Wait until an attempt has printed something; return its run."""
    service.wait_for_row(key, lambda seen: seen.status == "running")
    run = service.runs.wait(key, lambda runs: len(runs) >= attempt)[attempt - 1]
    wait_until(
        lambda: f"before {attempt}" in service.psched("logs", key).stdout, what="its first line"
    )
    return run


def ended(service, master, key="prints"):
    """Let the second run finish, stop, and see that nothing is left."""
    [_, run] = service.runs.wait(key, lambda runs: len(runs) == 2)
    service.open_gate("gate")
    service.wait_for_finish(key)
    last = service.psched("logs", key)
    assert last.stdout == f"before {run.attempt}\nafter {run.attempt}\n"
    assert len(collectors(master)) == len(master.workers())
    assert master.stop() == 0
    master.wait_until_nothing_is_left()


def outcome(service, attempt=1, key="prints"):
    """How an attempt has ended, by its record."""
    with service.schedules() as schedules:
        runs = [run for run in schedules.runs(key) if run.attempt == attempt and run.outcome]
    [run] = runs
    return run.outcome


def check_that_loss_is_told(service, key="prints", *, why="its worker died"):
    refused = service.psched("logs", key, "--attempt", 1)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert re.search(
        rf"its output is lost, because {why}; the lines that it had printed", refused.stderr
    )
    assert "printed nothing" not in refused.stderr
    assert outcome(service, key=key) == "lost"


@pytest.mark.landing
def test_what_a_killed_runner_had_printed_is_kept(service):
    service.add("prints", "prints")
    master = service.start()
    kill(started(service).pid)

    service.runs.wait("prints", lambda runs: len(runs) == 2)
    shown = service.psched("logs", "prints", "--attempt", 1)
    assert (shown.returncode, shown.stdout.splitlines()[0]) == (0, "before 1")
    assert "output is lost" not in shown.stderr
    assert outcome(service) == "failed"
    ended(service, master)


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("SIGKILL", "its worker died"),
        # Its lease timer kills the worker, and then its lease may have ended before the next one
        # learns of its death.
        ("SIGSTOP", "(its worker died|its lease ended without a settle)"),
    ],
)
def test_it_is_told_that_the_output_of_a_dead_workers_task_is_lost(service, how, why):
    service.configure(alive_time=6)
    service.add("prints", "prints")
    master = service.start()
    run = started(service)
    [collector] = collectors(master)
    kill(run.worker, signal.Signals[how])

    service.runs.wait("prints", lambda runs: len(runs) == 2, timeout=3 * PATIENCE)
    check_that_loss_is_told(service, why=why)
    # What it had printed by then is in the service's output.
    assert re.search(r"^\S+ prints: before 1$", master.text, re.MULTILINE)
    wait_until(lambda: has_ended(collector), what="the end of its collector")
    ended(service, master)


def test_a_stopped_collector_of_a_dead_worker_is_not_left_behind(service):
    service.add("prints", "prints")
    master = service.start()
    run = started(service)
    [collector] = collectors(master)
    kill(collector, signal.SIGSTOP)
    kill(run.worker)

    ended(service, master)
    assert has_ended(collector)


@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
def test_the_outcome_does_not_depend_on_the_collector(service, how):
    service.add("prints", "prints")
    master = service.start()
    started(service)
    [collector] = collectors(master)
    kill(collector, signal.Signals[how])

    service.open_gate("gate")
    service.wait_for_finish("prints")
    shown = service.psched("logs", "prints")
    # What the first collector had read is lost.
    assert (shown.returncode, shown.stdout) == (0, "after 1\n")
    assert "output is lost here" in shown.stderr
    assert outcome(service) == "finished"
    wait_until(lambda: collectors(master) not in ([], [collector]), what="another collector")
    service.add("next", "prints")
    service.wait_for_finish("next")
    assert service.psched("logs", "next").stdout == "before 1\nafter 1\n"
    assert master.stop() == 0
    master.wait_until_nothing_is_left()


def test_what_tasks_had_printed_when_their_master_was_killed_is_kept(service):
    service.add("prints", "prints")
    master = service.start()
    started(service)
    master.send(signal.SIGKILL)
    master.wait()
    master.wait_until_nothing_is_left()

    assert outcome(service) == "released"
    shown = service.psched("logs", "prints")
    assert (shown.returncode, shown.stdout.splitlines()[0]) == (0, "before 1")
    second = service.start()
    ended(service, second)


def test_the_loss_of_output_is_told_when_all_processes_were_killed_at_once(service):
    service.configure(alive_time=6)
    service.add("prints", "prints")
    master = service.start()
    started(service)
    pids = [pid for pid in master.descendants if title(pid).startswith("psched ")]
    for pid in pids:
        kill(pid, signal.SIGSTOP)  # so that none has a moment to act for another
    for pid in pids:
        kill(pid)
    master.wait_until_nothing_is_left()

    second = service.start()
    service.runs.wait("prints", lambda runs: len(runs) == 2, timeout=3 * PATIENCE)
    check_that_loss_is_told(service, why="its lease ended without a settle")
    ended(service, second)


def test_a_task_that_kills_its_fork_server_after_printing_keeps_its_output(service):
    service.add("prints", "prints")
    master = service.start()
    run = started(service)
    [server] = [pid for pid in children(run.worker) if title(pid) == "psched fork server"]
    assert run.pid in runners(run.worker)
    kill(server)

    service.runs.wait("prints", lambda runs: len(runs) == 2)
    shown = service.psched("logs", "prints", "--attempt", 1)
    assert (shown.returncode, shown.stdout) == (0, "before 1\n")
    assert outcome(service) == "lost"
    ended(service, master)


# --- daemons ---------------------------------------------------------------------------------

DAEMON = (
    "(setsid sh -c '(echo daemon; : >begun; while :; do echo daemon; done) &"
    " while [ ! -e begun ]; do sleep 0.01; done; echo child') & wait; echo parent"
)
"""Leaves a process in a session of its own, whose parent has exited, and that prints for ever."""


@pytest.mark.parametrize("cgroup", ["off", "on"])
def test_a_daemon_that_prints_for_ever_dies_with_its_task(service, cgroup):
    service.configure(cgroup=cgroup)
    service.add("daemon", "exec", data={"command": ["sh", "-c", DAEMON]})
    with own_cgroup("output") as group:
        enter = f'echo 0 >{group}/cgroup.procs && exec "$@"'
        command = [*service.master_command, "-c", service.config.name]
        words = ["/bin/sh", "-c", enter, "sh", *command] if cgroup == "on" else command
        master = service.start(*words)
        service.wait_for_finish("daemon")

        shown = service.psched("logs", "daemon")
        assert shown.returncode == 0
        assert "daemon\n" in shown.stdout
        assert outcome(service, key="daemon") == "finished"
        ours = [master.pid, *[pid for pid in master.descendants if "psched" in title(pid)]]
        assert [title(pid) for pid in master.descendants if pid not in ours] == []
        assert master.stop() == 0
        master.wait_until_nothing_is_left()


# --- signals ---------------------------------------------------------------------------------


def numbers(text, key="counts"):
    found = re.findall(rf"^\S+ {key}: number (\d+)$", text, re.MULTILINE)
    return [int(number) for number in found]


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1])
def test_a_restart_while_a_task_prints_loses_no_line(service, number):
    service.add("counts", "counts")
    master = service.start()
    service.runs.wait("counts")
    for generation in 2, 3:
        master.send(number)
        master.wait_for_generation(generation)
        before = len(numbers(master.text))
        wait_until(lambda n=before: len(numbers(master.text)) > n, what="further lines")
    # That of the new worker, and the one that reads the task.
    wait_until(
        lambda: len(left_collectors(master)) == len(master.workers()) == 2, what="two workers"
    )
    service.open_gate("gate")
    service.wait_for_finish("counts")
    wait_until(lambda: len(left_collectors(master)) == 1, what="the end of the old collector")
    assert master.stop() == 0

    [run] = service.runs.runs("counts")
    printed = run.notes[-1]["printed"]
    assert numbers(master.text) == [*range(1, printed + 1)]
    expected = "".join(f"number {each}\n" for each in range(1, printed + 1))
    assert service.psched("logs", "counts").stdout == expected[-65536:]
    master.wait_until_nothing_is_left()


@pytest.mark.parametrize("whom", ["master", "all"])
def test_after_a_rotation_lines_are_in_the_new_file_and_none_is_lost(service, whom):
    log = service.folder / "log"
    service.configure(concurrency=3, log=str(log), types={"says": {"output": "raw"}})
    service.add("counts", "counts")
    master = service.start(log="log")
    service.runs.wait("counts")
    old = []
    for number in range(3):
        wait_for_text(log, "counts: number")
        old.append(log.rename(log.with_name(f"log.{number}")))
        if whom == "master":
            master.send(signal.SIGUSR2)
        else:
            master.send_all(signal.SIGUSR2)
        wait_until(log.exists, what="the new log")
        wait_for_text(log, "counts: number")
        # The output of tasks that is not collected is in the new file, too, whether their processes
        # were forked before the rotation or after it.
        for key in [f"says{number}.{task}" for task in range(4)]:
            service.add(key, "says")
            service.wait_for_finish(key)
            assert f"said by {key}\n" in log.read_text()
    settled = [file.read_text() for file in old]
    service.open_gate("gate")
    service.wait_for_finish("counts")
    assert master.stop() == 0

    assert [file.read_text() for file in old] == settled
    found = numbers("".join(settled) + log.read_text())
    run = service.runs.runs("counts")[0]
    assert found == [*range(1, run.notes[-1]["printed"] + 1)]


@pytest.mark.landing
def test_the_last_words_of_a_stopped_task_are_kept(service):
    service.configure(graceful_timeout=0)
    service.add("counts", "counts")
    master = service.start()
    master.wait_for_log("counts: number 9\n")
    assert master.stop() == 0
    master.wait_until_nothing_is_left()

    [run] = service.runs.runs("counts")
    said = f"last words after {run.notes[-1]['printed']}\n"
    assert re.search(rf"^\S+ counts: {said}", master.text, re.MULTILINE)
    assert said in service.psched("logs", "counts").stdout
    assert outcome(service, key="counts") == "released"
