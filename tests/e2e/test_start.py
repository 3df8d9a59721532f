"""psched.start: a user's program that declares schedules and runs them."""

import re
import shlex
import signal
import sys

import pytest

from support.processes import ignoring_children
from support.waiting import HANG_TIMEOUT, wait_until

pytestmark = pytest.mark.extended

PROGRAM = """
    import asyncio
    import os
    from dataclasses import dataclass
    from pathlib import Path

    import psched

    HERE = Path(__file__).parent

    def note(*words):
        with HERE.joinpath("notes").open("a") as file:
            print(*words, file=file)

    def plain():
        note("plain")

    def with_task(task):
        note("with_task", task.scheduled_time)

    @dataclass
    class Report:
        who: str
        lines: int = 3

        def run(self, task):
            note("report", self.who, self.lines, task.type)

    class Handler:
        def __init__(self, task):
            self.task = task

        def run(self):
            note("handler", self.task.data)

    async def later():
        await asyncio.sleep(0)
        note("later")

    class Greeting:
        def __init__(self, who):
            self.who = who

        async def run(self, task):
            await asyncio.sleep(0)
            note("greeting", self.who, task.scheduled_time)

    def crash():
        note("crash")
        os.kill(os.getpid(), 11)

    with psched.start({url!r}, poll_interval=0.2, cgroup="off"{options}) as s:
        {jobs}
"""

EACH = "every=1, align=True"


class Program:
    """A user's program, in the folder of a service."""

    def __init__(self, service, url, name="program.py"):
        self.service = service
        self.url = url
        self.name = name

    def write(self, *jobs, **options):
        """Write the program, with these lines in the block of psched.start."""
        given = {"processors": 1, "concurrency": 1, **options}
        said = "".join(f", {name}={value!r}" for name, value in given.items())
        lines = "\n        ".join(jobs)
        text = PROGRAM.format(url={"url": self.url}, options=said, jobs=lines)
        self.service.write(self.name, text)

    def start(self, generation=1):
        """Run the program; it becomes the master that is returned."""
        return self.service.start(sys.executable, self.name, generation=generation)

    def notes(self):
        """The lines that the program's jobs have written."""
        file = self.service.folder / "notes"
        return file.read_text().splitlines() if file.exists() else []

    def wait_for_note(self, pattern, count=1):
        """Wait until the jobs have written lines that match, as often as ``count``."""
        wait_until(
            lambda: len(re.findall(pattern, "\n".join(self.notes()))) >= count, what=f"{pattern!r}"
        )


@pytest.fixture(
    params=[
        "sqlite",
        *(
            pytest.param(k, marks=getattr(pytest.mark, k))
            for k in ("mariadb", "postgresql", "redis")
        ),
    ]
)
def program(request, make_service, open_database):
    """A program on each kind of store."""
    with open_database(request.param) as database:
        yield Program(make_service(database.url), database.url)


@pytest.fixture
def small(service, tmp_path):
    """A program on SQLite."""
    return Program(service, f"sqlite:///{tmp_path}/psched.db")


def test_functions_and_objects_can_be_asynchronous(small):
    small.write(
        f"s.add('later', {EACH}, run=later)", f"s.add('greeting', {EACH}, run=Greeting('ann'))"
    )
    small.start()

    small.wait_for_note("later")
    small.wait_for_note("greeting ann [0-9]+")


def test_a_program_whose_parent_ignored_the_death_of_children_becomes_a_master(small):
    small.write(f"s.add('plain', {EACH}, run=plain)")
    master = small.service.start(*ignoring_children("program"))

    small.wait_for_note("plain", 2)
    assert master.stop() == 0


def test_a_restart_follows_a_link_to_releases(small):
    service = small.service
    folder = service.folder
    for number in 1, 2:
        (folder / f"r{number}").mkdir()
        small.name = f"r{number}/program.py"
        small.write(f"s.add('plain', {EACH}, run=lambda: note({number}))")
    link = folder / "current"
    link.symlink_to("r1")
    service.folder, service.env["PWD"] = link, str(link)
    master = service.start(sys.executable, "program.py", log="../log")
    service.folder = folder

    link.unlink()
    link.symlink_to("r2")
    master.send(signal.SIGHUP)
    master.wait_for_generation(2)

    notes = folder / "r2/notes"
    wait_until(lambda: notes.exists() and notes.read_text().count("2\n") > 1, what="the new code")
    assert master.stop() == 0


def keys(program):
    """The schedules in the program's store, by their keys."""
    with program.service.schedules() as schedules:
        return {each.key: each for each in schedules.list()}


@pytest.mark.landing
def test_jobs_are_functions_classes_and_objects_and_a_new_table_is_made(program):
    program.write(
        f's.add("plain", {EACH}, run=plain)',
        f's.add("default", {EACH}, run=lambda task=None: note("default", task.key))',
        f's.add("report", {EACH}, run=Report("ann"))',
        f's.add("handler", {EACH}, run=Handler, data={{"k": 1}})',
        f'@s.task("decorated", {EACH}, timezone="Asia/Tokyo")',
        "def decorated(task):",
        '    note("decorated", task.key)',
        's.add("mail", run=lambda task: note("mail", task.data))',
    )
    master = program.start()
    for pattern in (
        "plain",
        "report ann 3 program/report",
        "handler {'k': 1}",
        "decorated decorated",
    ):
        program.wait_for_note(pattern)
    with program.service.schedules() as schedules:
        schedules.push("mail-1", "mail", {"to": "ann"})
        assert schedules["mail-1"].wait(timeout=HANG_TIMEOUT) == "finished"
        report = schedules["report"].metadata()
    assert "mail {'to': 'ann'}" in program.notes()
    assert report.data == {"job": "program:Report", "parameters": {"who": "ann", "lines": 3}}
    assert report.label == "program"
    assert master.stop() == 0


def test_the_same_program_on_two_hosts_runs_each_occurrence_once_also_when_one_is_killed(program):
    program.write(f's.add("tick", {EACH}, run=with_task)', 's.add("slow", every=3600, run=plain)')
    masters = [program.start(generation=0) for _ in range(2)]
    program.wait_for_note("with_task", 3)
    masters[0].kill()
    program.wait_for_note("with_task", len(program.notes()) + 3)
    assert masters[1].stop() == 0
    times = [int(note.split()[1]) for note in program.notes() if note.startswith("with_task")]
    assert times == sorted(set(times))
    assert sum(master.text.count("the job 'slow' was added") for master in masters) == 1


def test_a_changed_program_changes_what_differs_and_nothing_else(small):
    program = small
    program.write('s.add("a", every=3600, run=plain)', 's.add("b", cron="@yearly", run=plain)')
    master = program.start()
    master.wait_for_log("the job 'b' was added")
    before = keys(program)
    program.write(
        's.add("a", every=3600, run=plain)',
        's.add("b", cron="@monthly", run=plain)',
        's.add("c", every=3600, run=plain)',
    )
    master.send(signal.SIGHUP)
    master.wait_for_log("the job 'b' was changed")
    after = keys(program)
    assert after["a"] == before["a"]
    assert (before["b"].cron, after["b"].cron) == ("@yearly", "@monthly")
    assert set(after) == {"a", "b", "c"}
    # A program with an invalid job changes nothing.
    program.write('s.add("a", cron="61 * * * *", run=plain)')
    master.send(signal.SIGHUP)
    master.wait_for_log(r"\.InvalidError: cron: ")
    assert set(keys(program)) == {"a", "b", "c"}
    assert len(master.workers(2)) == 1
    assert master.stop() == 0


def test_a_job_that_is_to_run_once_follows_the_time_that_the_program_says(small):
    small.write('s.add("j", every=3600, run=plain)')
    master = small.start()
    master.wait_for_log("the job 'j' was added")
    for number, time in enumerate((1_900_000_000, 1_950_000_000), start=1):
        small.write(f's.add("j", at={time}, run=plain)')
        master.send(signal.SIGHUP)
        wait_until(lambda: master.text.count("the job 'j' was changed") == number, what="a change")  # noqa: B023
        assert keys(small)["j"].next_time == keys(small)["j"].next_run_time == time
    assert not small.notes()
    assert master.stop() == 0


TRIGGER = """
    class Finite:
        def __init__(self, last):
            self.last = last

        def next_at(self, after):
            return self.last if after < self.last else None
"""


def test_a_job_whose_last_time_has_come_does_not_stop_the_others(small):
    small.service.write("finite.py", TRIGGER)
    small.write(
        's.add("over", trigger=("finite:Finite", {"last": 1_700_000_000}), run=with_task)',
        f's.add("plain", {EACH}, run=plain)',
    )
    master = small.start()
    small.wait_for_note("plain")
    assert set(keys(small)) == {"plain"}
    assert master.stop() == 0


OWN = """
    from __future__ import annotations

    from dataclasses import dataclass
    from datetime import datetime, timedelta
    from pathlib import Path

    import psched

    HERE = Path(__file__).parent

    def note(*words):
        with HERE.joinpath("notes").open("a") as file:
            print(*words, file=file)

    class Seconds:
        def next_at(self, after: datetime) -> datetime:
            return after + timedelta(seconds=1)

    @dataclass
    class Tick:
        gap: int

        def next_at(self, after):
            return (after // self.gap + 1) * self.gap

        def run(self, task):
            note("tick", task.scheduled_time, task.data["parameters"])

    with psched.start(backend={backend!r}, poll_interval=0.2, cgroup="off") as s:
        s.add("dated", lambda task: note("dated", task.scheduled_time), trigger=Seconds)
        s.add("twice", run=lambda task: note("twice"), trigger=Tick(2))
        s.add("tick", Tick(1))
"""


def test_classes_of_the_schedule_file_itself_are_jobs_and_triggers(small):
    # No module could have such a name.
    small.service.write("my schedule-1.py", OWN.format(backend=small.url))
    master = small.service.start(sys.executable, "my schedule-1.py")
    for pattern in ("dated", "twice", r"tick \d+ \{'gap': 1\}"):
        small.wait_for_note(pattern, 2)
    seen = keys(small)
    assert seen["dated"].cron == "@call __main__:Seconds"
    assert seen["tick"].cron == '@call __main__:Tick {"gap":1}'
    assert master.stop() == 0
    shown = small.service.psched("next", "tick")
    assert "is in the program that declared it: only its workers have it" in shown.stderr


def test_on_a_fresh_home_the_state_folder_is_made(small):
    home = small.service.folder / "fresh" / "home"
    small.service.env["HOME"] = str(home)
    small.service.write("program.py", OWN.replace("backend={backend!r}, ", ""))
    master = small.service.start(sys.executable, "program.py")
    small.wait_for_note("tick")
    assert (home / ".local" / "state" / "psched" / "psched.db").exists()
    assert master.stop() == 0


REFUSING = """
        from psched.files import apply
        def refuse(access, rows):
            raise psched.InvalidError("data", "are too many for this server")
        apply.insert = refuse
"""


def test_what_a_store_refuses_to_declare_is_told_and_ends_no_worker(small):
    small.write(f's.add("there", {EACH}, run=plain)')
    master = small.start()
    master.wait_for_log("the job 'there' was added")
    assert master.stop() == 0
    small.write(f's.add("there", {EACH}, run=plain)', f's.add("new", {EACH}, run=plain)', REFUSING)
    ran = len(small.notes())
    master = small.start()
    master.wait_for_log("the program.s jobs cannot be declared: data: are too many")
    small.wait_for_note("plain", ran + 2)
    assert len(master.workers(1)) == 1
    assert master.stop() == 0


def test_a_job_whose_refusal_the_program_has_caught_is_none(small):
    small.write(
        "try:",
        '    s.add("bad", cron="61 * * * *", run=plain)',
        "except psched.InvalidError:",
        "    pass",
        f's.add("good", {EACH}, run=with_task)',
    )
    master = small.start()
    small.wait_for_note("with_task")
    assert set(keys(small)) == {"good"}
    assert master.stop() == 0


def test_a_job_that_left_the_program_is_reported_and_does_not_run_and_can_be_pruned(small):
    program = small
    program.write(f's.add("gone", {EACH}, run=plain)', f's.add("stays", {EACH}, run=with_task)')
    master = program.start()
    program.wait_for_note("plain")
    program.write(f's.add("stays", {EACH}, run=with_task)')
    master.send(signal.SIGHUP)
    master.wait_for_log("the job 'gone' is no longer in the program, and is not run; prune=True")
    master.wait_for_log("generation 2 serves")
    wait_until(lambda: not master.workers(1), what="the end of the first generation")
    ran = program.notes().count("plain")
    program.wait_for_note("with_task", len(program.notes()) + 2)
    assert program.notes().count("plain") == ran
    assert "gone" in keys(program)
    program.write(f's.add("stays", {EACH}, run=with_task)', prune=True)
    master.send(signal.SIGHUP)
    master.wait_for_log("the job 'gone' was removed")
    assert set(keys(program)) == {"stays"}
    assert master.stop() == 0


def test_programs_with_other_labels_never_run_change_or_remove_each_others_jobs(small):
    other = Program(small.service, small.url, "other.py")
    small.write(
        f's.add("mine", {EACH}, run=plain)', 's.add("both", every=9, run=plain)', prune=True
    )
    other.write(
        f's.add("its", {EACH}, run=with_task)', 's.add("both", every=7, run=plain)', prune=True
    )
    first = small.start()
    first.wait_for_log("the job 'both' was added")
    second = other.start()
    second.wait_for_log(
        "the job 'both' is not declared: it belongs to the label 'program', and is declared for the"
        " label 'other'"
    )
    small.wait_for_note("plain", 2)
    small.wait_for_note("with_task", 2)
    assert keys(small)["both"].cron.startswith("@every 9 ")
    assert "[its." not in first.text
    assert "[mine." not in second.text
    assert first.stop() == 0
    ran = small.notes().count("plain")
    small.wait_for_note("with_task", len(small.notes()) + 2)
    assert small.notes().count("plain") == ran
    assert set(keys(small)) == {"mine", "its", "both"}
    assert second.stop() == 0


def test_a_job_that_crashes_ends_nothing_but_itself(small):
    small.write(f's.add("crash", {EACH}, run=crash)', f's.add("plain", {EACH}, run=plain)')
    master = small.start()
    small.wait_for_note("crash")
    small.wait_for_note("plain", 3)
    assert "[crash" in master.wait_for_log("died of signal SIGSEGV|was killed by signal|SIGSEGV")
    assert master.stop() == 0


@pytest.mark.parametrize(
    ("job", "told"),
    [
        ('s.add("a", cron="61 * * * *", run=plain)', "InvalidError: cron: "),
        ('s.add("a", every=5, run=3)', "InvalidError: run: must be a function, a class, or an obj"),
        (
            's.add("a", every=5, run=plain, typo=1)',
            "InvalidError: typo: is not a field of a schedule",
        ),
        ('s.add("a", run=plain, delay=1)', "InvalidError: cron: is missing, and so are every, at"),
        (
            f's.add("{"k" * 250}", every=5, run=plain)',
            "InvalidError: key: is too long: with the label",
        ),
        ('s.add("", run=plain)', "InvalidError: key: must not be empty"),
        ("pass", "RuntimeError: psched.start: no job was added"),
        ("1 / 0", "ZeroDivisionError"),
    ],
)
def test_what_makes_no_sense_is_refused_in_its_line_and_nothing_is_started(small, job, told):
    small.write(job)
    done = small.service.run(sys.executable, "program.py")
    assert done.returncode == 1
    assert told in done.stderr.splitlines()[-1]
    assert not keys(small)


BESIDE = """
    import time
    from pathlib import Path

    import psched

    with psched.start({settings!r}, join=False) as s:
        s.add("tick", every=1, align=True, run=lambda: print("tick", flush=True))
    print("goes on", s.pid, flush=True)
    while not Path(__file__).with_name("gate").exists():
        time.sleep(0.02)
    print("stopped", s.stop(), s.stop(), flush=True)
"""


def test_a_master_can_run_beside_its_program_and_ends_with_it(small):
    settings = {"url": small.url, "poll_interval": 0.2, "cgroup": "off"}
    small.service.write("beside.py", BESIDE.format(settings=settings))
    first = small.service.start(sys.executable, "beside.py", generation=0)
    first.wait_for_log(r"goes on \d+\n(.*\n)*.*tick\n")
    small.service.open_gate("gate")
    first.wait_for_log("stopped 0 0\n")
    assert first.wait() == 0
    (small.service.folder / "gate").unlink()

    second = small.service.start(sys.executable, "beside.py", generation=0)
    second.wait_for_log("tick\n")
    second.send(signal.SIGKILL)
    wait_until(lambda: "master stopped" in second.text, what="the end of its master")
    second.wait_until_nothing_is_left()


TWICE = """
    from pathlib import Path

    import psched

    for _ in range(2):
        try:
            with psched.start({settings!r}, join=False) as s:
                s.add("tick", every=1, run=print)
            told = str(s.stop())
        except RuntimeError as error:
            told = str(error)
        with Path("told").open("a") as file:
            print(told, file=file)
"""


def test_a_program_without_open_outputs_starts_one_master(small):
    settings = {"url": small.url, "cgroup": "off"}
    small.service.write("twice.py", TWICE.format(settings=settings))
    command = f"exec {shlex.quote(sys.executable)} twice.py >&- 2>&-"
    assert small.service.run("/bin/sh", "-c", command).returncode == 0
    told = (small.service.folder / "told").read_text().splitlines()
    assert told[0] == "0"
    assert "has started a master already; add all jobs in one block" in told[1]


def test_a_thread_of_a_program_is_no_place_for_a_schedule(small):
    program = """
        import threading
        import psched
        threading.Thread(target=psched.start).start()
    """
    small.service.write("threaded.py", program)
    done = small.service.run(sys.executable, "threaded.py")
    assert "RuntimeError: psched.start must be called in the program's main thread" in done.stderr


def test_in_memory_each_host_runs_its_own(make_service):
    programs = [Program(make_service("memory:"), "memory:") for _ in range(2)]
    for each in programs:
        each.write(f's.add("plain", {EACH}, run=plain)')
    masters = [each.start() for each in programs]
    for each in programs:
        each.wait_for_note("plain", 2)
    assert [master.stop() for master in masters] == [0, 0]
    for each in programs:
        assert not [*(each.service.folder / "run").glob("psched-*")]
