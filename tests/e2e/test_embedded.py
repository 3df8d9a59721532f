"""psched.Worker.run: a user's program that becomes a service."""

import json
import signal
import sys
import zipapp
from pathlib import Path
from textwrap import dedent

import pytest

from support.run_log import completed
from support.waiting import wait_until

pytestmark = pytest.mark.extended

PROGRAM = """
    import json, mmap, os, sys
    from pathlib import Path

    import psched
    import recorder

    FOLDER = Path(__file__).parent
    CODE = {code}

    # Which process has run this code; and a mark in the memory of each process that has it.
    with FOLDER.joinpath("ran").open("a") as ran:
        print(os.getpid(), file=ran)
    with open(__file__, "rb") as file:
        TRACE = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


    class Versioned(recorder.Recorder):
        def run(self):
            self.note("code", code=CODE, arguments=sys.argv[1:])
            super().run()


    class Dispatch(recorder.Dispatch):
        routes = {{**recorder.Dispatch.routes, "versioned": Versioned}}


    def load():
        return json.loads(FOLDER.joinpath("settings.json").read_text())


    if __name__ == "__main__":
        psched.Worker.run(Dispatch, load)
        raise AssertionError("never reached")
"""


@pytest.fixture
def program(service, tmp_path):
    """A service whose master was started by a program in the same folder."""
    service.write("program.py", PROGRAM.format(code=1))
    configure(service, url=f"sqlite:///{tmp_path}/psched.db")
    return service


def configure(service, **settings):
    """Change what the program's loader returns."""
    path = service.folder / "settings.json"
    first = {"poll_interval": 0.2, "processors": 1, "concurrency": 1}
    before = json.loads(path.read_text()) if path.exists() else first
    path.write_text(json.dumps({**before, "retry_wait": 1, **settings}))


def code_of(run):
    """The version of the program that made a run, and the program's arguments."""
    [note] = [note for note in run.notes if note["event"] == "code"]
    return note["code"], note["arguments"]


def knows_the_program(pid):
    """Whether a process has the program's code in its memory."""
    return "/program.py" in Path(f"/proc/{pid}/maps").read_text()


@pytest.mark.landing
def test_a_program_serves_until_it_is_told_to_stop(program):
    service = program
    arguments = ["--colour", "red", "--", "-x", "", "a b"]
    service.add("s1", "versioned")
    master = service.start(sys.executable, "program.py", *arguments)

    [run] = service.runs.wait("s1", completed(1))
    service.wait_for_finish("s1")

    assert code_of(run) == (1, arguments)
    # The started process has run the program, but the master that replaced it has none of its code.
    [worker] = master.workers()
    assert (service.folder / "ran").read_text() == f"{master.pid}\n{worker}\n"
    assert knows_the_program(worker)
    assert not knows_the_program(master.pid)
    assert master.stop() == 0
    assert master.descendants == []
    assert "never reached" not in master.text


@pytest.mark.parametrize("given", ["load()", "'own.yml'", "Path('own.yml')"])
def test_settings_can_be_given_as_they_are_or_as_the_path_of_a_file(program, given):
    service = program
    content = json.loads((service.folder / "settings.json").read_text())
    service.write("own.yml", json.dumps(content | {"retry_wait": 1}))
    text = PROGRAM.format(code=1).replace("Dispatch, load)", f"Dispatch, {given})")
    service.write("program.py", text)
    service.add("s1", "versioned")

    master = service.start(sys.executable, "program.py")

    service.wait_for_finish("s1")
    assert "rows may run any program as user " in master.text
    assert master.stop() == 0


def test_a_restart_reads_the_program_and_its_configuration_again(program):
    service = program
    service.add("long", "versioned", data={"until": "gate"})
    master = service.start(sys.executable, "program.py", "one")
    service.runs.wait("long")

    service.write("program.py", PROGRAM.format(code=2))
    configure(service, processors=3)
    master.send(signal.SIGHUP)
    master.wait_for_generation(2)
    service.add("short", "versioned")
    [short] = service.runs.wait("short", completed(1))
    assert code_of(short) == (2, ["one"])
    assert len(master.workers(2)) == 3
    service.open_gate("gate")
    service.wait_for_finish("long")
    assert code_of(service.runs.runs("long")[0]) == (1, ["one"])

    # If the program is broken at a restart, the last generation goes on.
    service.write("program.py", "def broken(:")
    master.send(signal.SIGHUP)
    master.wait_for_log("generation 3 could not be started")
    service.add("after", "versioned")
    [after] = service.runs.wait("after", completed(1))
    assert code_of(after) == (2, ["one"])
    assert master.stop() == 0


def test_log_and_pid_file_are_those_of_the_loaders_settings(program):
    service = program
    log, pid_file = service.folder / "log", service.folder / "pid"
    configure(service, log=str(log), pid_file=str(pid_file), processors=2)
    master = service.start(sys.executable, "program.py", log="log")

    assert pid_file.read_text() == f"{master.pid}\n"
    assert len(master.workers()) == 2
    second = service.start(sys.executable, "program.py", log="second", generation=0)
    assert second.wait() == 75
    assert f"is held by a running psched-master, pid {master.pid}" in log.read_text() + second.text
    assert pid_file.read_text() == f"{master.pid}\n"
    assert len(master.workers()) == 2

    assert master.stop() == 0
    assert "master stopped" in log.read_text()
    assert not pid_file.exists()


def test_the_second_instance_of_a_program_runs_no_task(program):
    service = program
    configure(service, pid_file=str(service.folder / "pid"))
    first = service.start(sys.executable, "program.py")
    first.send(signal.SIGWINCH)
    first.wait_for_log("paused")
    service.add("s1")

    second = service.start(sys.executable, "program.py", generation=0)

    assert second.wait() == 75
    assert service.runs.runs("s1") == []
    assert first.stop() == 0


@pytest.mark.parametrize("package", ["jobs", "jobs.service"])
def test_a_package_is_run_as_a_program(program, package):
    service = program
    text = PROGRAM.format(code=7).replace("Path(__file__).parent", "Path(__file__).parents[1]")
    service.write("jobs/__init__.py", "")
    name = "__main__" if package == "jobs" else "service"
    service.write(f"jobs/{name}.py", text)
    service.add("s1", "versioned")

    master = service.start(sys.executable, "-m", package, "some", "--thing")

    assert code_of(service.runs.wait("s1", completed(1))[0]) == (7, ["some", "--thing"])
    assert master.stop() == 0


@pytest.mark.parametrize("form", ["folder", "archive"])
def test_a_folder_or_an_archive_is_run_as_a_program(program, form):
    service = program
    here = str(service.folder)
    text = dedent(PROGRAM.format(code=8)).replace("Path(__file__).parent", f"Path({here!r})")
    text = text.replace("open(__file__", f"open({str(service.config)!r}")
    main = service.write(
        "application/__main__.py", f"import sys\nsys.path.append({here!r})\n{text}"
    )
    if form == "archive":
        zipapp.create_archive(main.parent, service.folder / "archive")
    service.add("s1", "versioned")

    service.start(sys.executable, "application" if form == "folder" else "archive", "some")

    assert code_of(service.runs.wait("s1", completed(1))[0]) == (8, ["some"])


def test_a_program_may_be_in_another_folder_and_bring_modules_of_its_own(program):
    service = program
    text = PROGRAM.format(code=3).replace("Path(__file__).parent", "Path(__file__).parents[1]")
    service.write("bin/program.py", text.replace("import recorder", "import beside, recorder"))
    service.write("bin/beside.py", f"import sys; sys.path.append({str(service.folder)!r})")
    service.add("s1", "versioned")

    service.start(sys.executable, "bin/program.py")

    assert code_of(service.runs.wait("s1", completed(1))[0])[0] == 3


@pytest.mark.parametrize(
    ("code", "status", "says"),
    [
        ("import nowhere", 65, "No module named 'nowhere'"),
        ("raise SystemExit(3)", 65, "has called sys.exit(3)"),
        ("psched.Worker.run(7, load)", 65, "the dispatch should be a subclass of"),
        ("psched.Worker.run(Dispatch, lambda: {'colour': 'red'})", 78, "colour: unknown setting"),
        ("psched.Worker.run(Dispatch, lambda: 'nowhere.yml')", 78, "nowhere.yml"),
        ("psched.Worker.run(Dispatch, lambda: {}['url'])", 78, "KeyError: 'url'"),
        ("psched.Worker.run(Dispatch, lambda: 7)", 78, "the configuration cannot be loaded"),
        ("psched.Worker.run(Dispatch, lambda: {'log': '/no/where/log'})", 78, "log: cannot be"),
    ],
)
def test_a_program_that_cannot_serve_ends_with_a_status_that_says_why(program, code, status, says):
    service = program
    service.write(
        "program.py",
        f"""
        import sys
        import psched
        from recorder import Dispatch

        def load():
            return {{}}

        # No error in the process that is started and becomes the master.
        if "psched.cli.daemon.master" in sys.orig_argv:
            {code}
        psched.Worker.run(Dispatch, load)
        """,
    )

    master = service.start(sys.executable, "program.py", generation=0)

    assert master.wait() == status
    assert says in master.text
    assert master.descendants == []


def test_a_program_that_is_broken_from_the_start_fails_as_any_program_does(program):
    program.write("program.py", "import psched\nraise ValueError('no')")

    master = program.start(sys.executable, "program.py", generation=0)

    assert master.wait() == 1
    assert "ValueError: no" in master.text


def test_a_program_that_ends_without_serving_is_told_so_at_a_restart(program):
    service = program
    master = service.start(sys.executable, "program.py")

    service.write("program.py", "pass")
    master.send(signal.SIGHUP)

    master.wait_for_log("program.py has ended without calling psched.Worker.run")
    master.wait_for_log("generation 2 could not be started: .*; generation 1 goes on")
    assert master.stop() == 0


def test_typed_into_an_interpreter_there_is_no_program_to_run(program):
    done = program.run(
        sys.executable,
        *["-c", "import psched, recorder; psched.Worker.run(recorder.Dispatch, dict)"],
    )

    assert done.returncode == 1
    assert "must be called from a program in a file or module" in done.stderr


def test_orders_from_the_keyboard_stop_a_program(program):
    service = program
    service.add("long", data={"until": "gate"})
    master = service.start(sys.executable, "program.py")
    service.runs.wait("long")

    master.send_to_group(signal.SIGINT)
    master.wait_for_log("stopping")
    service.open_gate("gate")

    assert master.wait() == 0
    wait_until(lambda: service.row("long").status == "finished", what="the task's end")


def test_a_master_of_a_program_can_be_started_by_hand(program):
    service = program
    service.add("s1", "versioned")

    master = service.start(*service.master_command, "program.py", "--colour", "red", "--help")

    assert code_of(service.runs.wait("s1", completed(1))[0]) == (1, ["--colour", "red", "--help"])
    assert master.stop() == 0


@pytest.mark.parametrize(("options", "there"), [([], True), (["-P"], False)])
def test_the_programs_folder_is_on_its_path_as_the_interpreter_was_told(program, options, there):
    service = program
    here = str(service.folder)
    before = f"import sys; print('path:', {here!r} in sys.path); sys.path.append({here!r})"
    service.write("program.py", f"{before}\n{dedent(PROGRAM.format(code=4))}")

    master = service.start(sys.executable, *options, "program.py")

    # Once by the program that was started, and once by a worker.
    assert master.text.count(f"path: {there}") == 2
    assert master.stop() == 0
