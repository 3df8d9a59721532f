"""What handlers have opened at import: what of it works in tasks, and what is named instead."""

import json
import re
import signal
import socket
import sys

import pytest

OPENS = """
    import csv, fcntl, io, logging, logging.config, logging.handlers, mmap, os, tempfile, zipfile
    from pathlib import Path

    HERE = Path(__file__).parent

    def logger(name, handler):
        log = logging.getLogger(name)
        log.addHandler(handler)
        log.warning("module loaded")
        return log

    PLAIN = logger("plain", logging.FileHandler(HERE / "plain.log"))
    DELAYED = logger("delayed", logging.FileHandler(HERE / "delayed.log", delay=True))
    ROTATING = logger("rotating", logging.handlers.RotatingFileHandler(HERE / "rotating.log"))
    WATCHED = logger("watched", logging.handlers.WatchedFileHandler(HERE / "watched.log"))
    logging.config.dictConfig({
        "version": 1,
        "disable_existing_loggers": False,
        "handlers": {"file": {"class": "logging.FileHandler", "filename": HERE / "configured.log"}},
        "loggers": {"configured": {"handlers": ["file"]}},
    })
    CONFIGURED = logging.getLogger("configured")
    CONFIGURED.warning("module loaded")

    OUTPUT = open(HERE / "output", "w")
    OUTPUT.write("a header\\n")  # it stays in the buffer
    (HERE / "rows.csv").write_text("a,1\\nb,2\\n")
    ROWS = csv.reader(open(HERE / "rows.csv"))
    with zipfile.ZipFile(HERE / "archive.zip", "w") as made:
        made.writestr("member", "of the archive")
    ARCHIVE = zipfile.ZipFile(HERE / "archive.zip")
    LOCK = open(HERE / "lock", "w")
    fcntl.flock(LOCK, fcntl.LOCK_EX)
    if not (HERE / "fifo").exists():
        os.mkfifo(HERE / "fifo")
    FIFO = os.open(HERE / "fifo", os.O_RDWR)
    PIPE = os.pipe()
    MAPPED = mmap.mmap(os.open(HERE / "rows.csv", os.O_RDWR), 0)
    MEMORY = os.fdopen(os.memfd_create("ours"), "w+b")
    MEMORY.write(b"in memory")
    DELETED = tempfile.TemporaryFile()
    DELETED.write(b"has no name")
    RANDOM = open("/dev/urandom", "rb", buffering=0)
    FOLDER = os.open(HERE, os.O_RDONLY)
"""

USES = """
    def uses(task):
        for log in PLAIN, DELAYED, ROTATING, WATCHED, CONFIGURED:
            log.warning("task ran")
        print("of the task", file=OUTPUT, flush=True)
        assert [*ROWS] == [["a", "1"], ["b", "2"]]
        assert ARCHIVE.read("member") == b"of the archive"
        with open(HERE / "lock") as other:
            try:
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pass
            else:
                raise AssertionError("the lock is lost")
        assert MAPPED[:3] == b"a,1"
        os.write(FIFO, b"passes")
        assert os.read(FIFO, 100) == b"passes"
        os.write(PIPE[1], b"passes")
        assert os.read(PIPE[0], 100) == b"passes"
        for file, text in (MEMORY, b"in memory"), (DELETED, b"has no name"):
            file.seek(0)
            assert file.read() == text
        assert len({*RANDOM.read(100)}) > 1
        assert "h.py" in os.listdir(FOLDER)
"""

DISPATCH = """
    from psched.application import Dispatch as Base

    class Dispatch(Base):
        routes = {"uses": uses}
"""

APP = """
    import psched

    app = psched.App()
    app.task("uses")(uses)
"""

PROGRAM = """
    import psched

    if __name__ == "__main__":
        with psched.start("psched.yml") as s:
            s.add("uses", run=uses)
"""


LOGS = "plain", "delayed", "rotating", "watched", "configured"


def run(service, key, type_, **fields):
    """Run a task, once; it must finish."""
    service.add(key, type_, max_attempts=1, **fields)
    seen = service.wait_for_row(key, lambda seen: seen.status not in {"waiting", "running"})
    assert seen.status == "finished"


def works(service):
    for key in "one", "two":
        run(service, key, "uses")
    for name in LOGS:
        lines = (service.folder / f"{name}.log").read_text().splitlines()
        # A program is run from its first line by the process that becomes the master, too.
        assert [*dict.fromkeys(lines)] == ["module loaded", "task ran"], name
        assert lines.count("task ran") == 2
    # What was in the buffer is written once.
    assert (service.folder / "output").read_text().splitlines() == [
        "a header",
        "of the task",
        "of the task",
    ]


@pytest.mark.parametrize(("form", "name"), [(DISPATCH, "h:Dispatch"), (APP, "h:app")])
def test_files_that_handlers_have_opened_at_import_work_in_tasks(service, form, name):
    service.write("h.py", OPENS + USES + form)
    service.configure(dispatch=name)
    master = service.start()

    works(service)
    assert master.stop() == 0
    assert "descriptor" not in master.text


def test_files_that_a_program_has_opened_work_in_tasks(service):
    service.write("h.py", OPENS + USES + PROGRAM)
    master = service.start(sys.executable, "h.py")

    works(service)
    assert master.stop() == 0


def test_files_work_in_tasks_after_one_that_has_used_the_store_and_in_a_new_generation(service):
    """A task that uses the store is followed by ones that inherit its modules."""
    service.write(
        "h.py",
        """
        import logging, logging.handlers, os
        from pathlib import Path
        from psched.application import Dispatch as Base

        HERE = Path(__file__).parent
        LATE = logging.getLogger("late")
        LATE.addHandler(logging.FileHandler(HERE / "late.log", delay=True))
        # This file is opened when something is logged, and opened again when it was renamed.
        root = logging.handlers.WatchedFileHandler(HERE / "root.log", delay=True)
        logging.getLogger().addHandler(root)
        OUTPUT = open(HERE / "output", "w")

        def uses_the_store(task):
            assert "k" not in task.schedules

        def writes(task):
            print(task.key, os.getppid(), file=OUTPUT, flush=True)
            LATE.error("of %s", task.key)

        def fails(task):
            os.rename(HERE / "root.log", HERE / "root.log.1")
            raise ValueError

        class Dispatch(Base):
            routes = {"uses": uses_the_store, "writes": writes, "fails": fails}
        """,
    )
    service.configure(dispatch="h:Dispatch")
    master = service.start()
    run(service, "first", "writes")
    service.add("failed", "fails", max_attempts=1)
    service.wait_for_row("failed", lambda seen: seen.status == "failed")
    run(service, "store", "uses")
    run(service, "second", "writes")
    master.send(signal.SIGHUP)
    master.wait_for_generation(2)
    run(service, "third", "writes")
    assert master.stop() == 0

    written = (service.folder / "output").read_text().split()
    assert written[::2] == ["third"]  # a new generation opens its files anew
    for log in "late.log", "root.log":
        assert "of third" in (service.folder / log).read_text()
    assert "of second" in (service.folder / "root.log").read_text()


# --- what is named instead -------------------------------------------------------------

CANNOT = """
    import os, select, socket, sqlite3
    from pathlib import Path
    from psched.application import Dispatch as Base
    from pool import POOL

    HERE = Path(__file__).parent

    class Client:
        def __init__(self):
            self.connections = {"first": [POOL.connection]}

    CLIENT = Client()
    PLAIN = sqlite3.connect(HERE / "app.db")
    PLAIN.execute("create table if not exists t (n)")
    ODD = sqlite3.connect(HERE / "odd name")
    ODD.execute("create table if not exists t (n)")
    NEW = sqlite3.connect(HERE / f"new{os.getpid()}", isolation_level=None)
    NEW.execute("begin immediate")
    NEW.execute("create table t (n)")
    QUEUE = select.epoll()
    PAIR = socket.socketpair()
    LISTENER = socket.socket(socket.AF_UNIX)
    LISTENER.bind(str(HERE / f"listener{os.getpid()}"))
    FILE = open(HERE / "file", "a")

    def fails(task):
        for use in (
            lambda: POOL.connection.send(b"x"),
            lambda: PLAIN.execute("insert into t values (1)"),
            lambda: PLAIN.execute("create table if not exists u (n)"),
            lambda: ODD.execute("select * from t").fetchall(),
            lambda: NEW.execute("commit"),
            lambda: QUEUE.register(0),
            lambda: os.read(PAIR[0].fileno(), 1),
            lambda: os.write(QUEUE.fileno(), b"x"),
        ):
            try:
                use()
            except (OSError, sqlite3.Error):
                continue
            raise AssertionError("no error")

    class Dispatch(Base):
        routes = {"fails": fails}
"""

POOL = """
    import os, socket

    class Pool:
        def __init__(self):
            self.connection = socket.create_connection(("127.0.0.1", int(os.environ["PORT"])))

    POOL = Pool()
"""


def test_what_does_not_survive_a_fork_is_named_once_by_the_start_and_by_check_and_fails_loudly(
    service,
):
    service.write("h.py", CANNOT)
    service.write("pool.py", POOL)
    service.configure(dispatch="h:Dispatch", processors=2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        peer = f"127.0.0.1:{server.getsockname()[1]}"
        service.env["PORT"] = peer.partition(":")[2]
        checked = service.psched("check")
        master = service.start()
        run(service, "k", "fails")
        assert master.stop() == 0

    folder = service.folder
    expected = [
        (f"a socket to {peer}", "pool"),
        (f"the database {folder}/app.db", "h"),
        (f"the database {folder}/odd name", "h"),
        (f"the database {folder}/new", "h"),
        (f"the database {folder}/new-journal", "h"),
        ("eventpoll", "h"),
        ("a socket without an address", "h"),
        ("a socket without an address", "h"),
        (f"a socket at {folder}/listener", "h"),
    ]
    assert checked.returncode == 0
    for said in checked.stdout, master.text:
        named = re.findall(
            r"descriptor \d+, (.*), the module '(\w+)' has opened: tasks find",
            re.sub(r"(new|listener)\d+", r"\1", said),
        )
        assert sorted(named) == sorted(expected)
        assert said.count("open it in the task") == len(expected)


def test_a_runner_has_no_other_descriptors_than_these(service):
    service.write("h.py", LISTS)
    service.configure(dispatch="h:Dispatch", processors=2, log=str(service.folder / "log"))
    # Whatever inherits the master, or opens files before the handlers are loaded, is not theirs.
    master = service.start(log="log")
    run(service, "uses the store", "uses")
    for key in "one", "two":
        run(service, key, "lists")
        listed = json.loads((service.folder / f"{key}.json").read_text())
        kinds = sorted(re.sub(r":\[\d+\]", "", each) for each in listed["inside"].values())
        assert kinds == sorted(
            [
                "/dev/null",  # standard input
                *["pipe"] * 2,  # standard output and error
                *[str(service.folder / "log")] * 3,  # the log, and the service's output
                "socket",  # the line to the worker
                str(service.folder / "file"),
            ]
        )
        assert listed["executed"] == ["/dev/null", "pipe", "pipe"]
    assert master.stop() == 0


LISTS = """
    import json, os, socket, subprocess
    from pathlib import Path
    from psched.application import Dispatch as Base

    HERE = Path(__file__).parent
    FILE = open(HERE / "file", "w")
    os.set_inheritable(FILE.fileno(), True)
    PAIR = socket.socketpair()

    CODE = "import os; print(*(os.readlink(f'/proc/self/fd/{n}') for n in (0, 1, 2)), sep=chr(10))"

    def can_be_used(number):
        text = Path(f"/proc/self/fdinfo/{number}").read_text()
        flags = int(dict(line.split(":") for line in text.splitlines())["flags"], 8)
        return not flags & os.O_PATH

    def lists(task):
        inside = {}
        for name in os.listdir("/proc/self/fd"):
            try:
                if can_be_used(name):
                    inside[name] = os.readlink(f"/proc/self/fd/{name}")
            except OSError:
                continue  # the listing's own
        executed = subprocess.run(["ls", "-l", "/proc/self/fd"], capture_output=True, text=True)
        others = [line.split("-> ")[1] for line in executed.stdout.splitlines()[1:]]
        kinds = [each.partition(":")[0] for each in others if not each.startswith("/proc/")]
        text = json.dumps({"inside": inside, "executed": sorted(kinds)})
        (HERE / f"{task.key}.json").write_text(text)

    def uses_the_store(task):
        assert "k" not in task.schedules

    class Dispatch(Base):
        routes = {"lists": lists, "uses": uses_the_store}
"""


# --- logging ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "configuration",
    [
        "logging.basicConfig(filename=HERE / 'own.log', level='DEBUG')",
        "logging.basicConfig(filename=HERE / 'own.log', level='DEBUG', force=True)",
        """logging.config.dictConfig({
            "version": 1,
            "handlers": {"file": {"class": "logging.FileHandler", "filename": HERE / "own.log"}},
            "root": {"handlers": ["file"], "level": "DEBUG"},
        })""",
    ],
)
def test_a_configuration_of_logging_for_the_whole_process_works_and_leaves_psched_its_log(
    service, configuration
):
    service.write(
        "h.py",
        f"""
        import logging, logging.config
        from pathlib import Path
        from psched.application import Dispatch as Base

        HERE = Path(__file__).parent
        {configuration}
        logging.info("module loaded")

        def uses(task):
            logging.debug("only in the handlers' own log")
            logging.info("task ran")

        class Dispatch(Base):
            routes = {{"uses": uses}}
        """,
    )
    service.configure(dispatch="h:Dispatch")
    master = service.start()
    run(service, "k", "uses")
    assert master.stop() == 0

    own = (service.folder / "own.log").read_text()
    for text in "module loaded", "only in the handlers", "task ran":
        assert own.count(text) == 1
    assert "task ran" in master.text
    assert "[k.1000000000] finished" in master.text
    assert "only in the handlers" not in master.text


def test_a_module_that_fails_after_it_has_configured_logging_is_reported(service):
    service.write(
        "h.py",
        """
        import logging.config
        logging.config.dictConfig({"version": 1, "root": {"handlers": []}})
        raise ValueError("for a reason")
        """,
    )
    service.configure(dispatch="h:Dispatch")
    master = service.start(generation=0)
    assert master.wait() == 65
    assert "ValueError: for a reason" in master.text


# --- threads ---------------------------------------------------------------------------

NATIVE = """
    import ctypes, os
    libc = ctypes.CDLL(None)

    class Native:
        \"\"\"A thread of no Python code, as libraries have.\"\"\"

        def start(self):
            self.over = ctypes.create_string_buffer(64)
            libc.pthread_mutex_lock(self.over)  # no signal interrupts who waits for it
            self.number = ctypes.c_ulong()
            libc.pthread_create(ctypes.byref(self.number), None, libc.pthread_mutex_lock, self.over)

        def end(self):
            libc.pthread_mutex_unlock(self.over)
            libc.pthread_join(self.number, None)

    THREAD = Native()
    THREAD.start()
"""

PYTHON = """
    import os, threading

    class Python:
        def start(self):
            self.over = threading.Event()
            self.thread = threading.Thread(target=self.over.wait, name="of a library", daemon=True)
            self.thread.start()

        def end(self):
            self.over.set()
            self.thread.join()

    THREAD = Python()
    THREAD.start()
"""

ROUTES = """
    from psched.application import Dispatch as Base
    import library

    def runs(task):
        assert type(library.THREAD).__name__ in {"Native", "Python"}

    class Dispatch(Base):
        routes = {"runs": runs}
"""

THREADS = pytest.mark.parametrize("kind", [NATIVE, PYTHON], ids=["native", "python"])


@pytest.mark.parametrize(
    "again", ["", ", after_in_child=THREAD.start"], ids=["for good", "and start again in the child"]
)
@THREADS
def test_threads_that_end_in_a_fork_handler_hinder_nothing(service, kind, again):
    service.write("library.py", kind + f"    os.register_at_fork(before=THREAD.end{again})\n")
    service.write("h.py", ROUTES)
    service.configure(dispatch="h:Dispatch", processors=2)
    checked = service.psched("check")
    assert "handlers: 1 routes: ok" in checked.stdout
    assert checked.returncode == 0
    master = service.start()
    for key in "one", "two":
        run(service, key, "runs")
    assert master.stop() == 0


@pytest.mark.parametrize("when", ["at import", "after the fork"])
@THREADS
def test_threads_that_are_left_are_named_by_the_start_and_by_check(service, kind, when):
    library = kind
    if when == "after the fork":
        library = kind.replace("    THREAD.start()\n", "")
        library += "    os.register_at_fork(after_in_child=THREAD.start)\n"
    service.write("library.py", library)
    service.write("h.py", ROUTES)
    service.configure(dispatch="h:Dispatch")
    checked = service.psched("check")
    master = service.start(generation=0)
    assert master.wait() == 65
    assert checked.returncode == 1
    assert "Traceback" not in checked.stderr
    name = "'of a library' of the module 'library'" if kind is PYTHON else "native code"
    for said in checked.stderr, master.text:
        assert "this process has 2 threads and must not fork" in said
        assert name in said
        assert "let it start them when a task runs" in said
