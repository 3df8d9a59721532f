"""The log: whole lines, each once, whatever happens to the file and whatever is in them."""

import json
import logging
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from psched.base import log
from psched.base.errors import ProcessStopError
from psched.base.regular_files import NotRegularError
from psched.process.signals import SignalInbox
from psched.process.spawn import fork
from support.isolated import isolated, say, started_isolated
from support.odd_files import EMPTY, KINDS, leave
from support.processes import kill
from support.waiting import wait_until

USR2, TERM = signal.SIGUSR2, signal.SIGTERM
HEAD = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z \[\d+\] INFO   "
LINE = re.compile(HEAD + r" writer (\d+) \[s1\.60\] line (\d+) (x+)")


@pytest.fixture
def root():
    """The root logger, given back as it was."""
    logger = logging.getLogger()
    before = logger.handlers[:], logger.level
    yield logger
    logger.handlers[:], _ = before
    logger.setLevel(before[1])


@pytest.fixture
def path(tmp_path):
    return tmp_path / "log"


@pytest.fixture
def journal(root, path):  # noqa: ARG001  # the root logger is put back after it
    opened = log.start(path, "info", "writer")
    yield opened
    opened.redirect(None)


# --- lines ---------------------------------------------------------------------------


def test_a_line_tells_when_who_about_what_and_the_message(journal, path):
    journal.subject = "s1.60"
    logging.getLogger("anything").warning("%d tasks", 3)
    journal.subject = ""
    logging.getLogger("anything").info("idle", extra={"subject": "s2.90"})
    logging.getLogger("anything").debug("unseen")
    head = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z \[PID\] ".replace("PID", str(os.getpid()))
    assert re.fullmatch(
        rf"{head}WARNING writer \[s1\.60\] 3 tasks\n{head}INFO    writer \[s2\.90\] idle\n",
        path.read_text(),
    )


@pytest.mark.usefixtures("journal")
def test_a_traceback_is_indented_below_its_line(path):
    try:
        int("x")
    except ValueError:
        logging.getLogger("anything").exception("failed")
    first, *rest = path.read_text().splitlines()
    assert first.endswith("failed")
    assert all(line.startswith("    ") for line in rest)
    assert rest[-1].startswith("    ValueError: ")


def lines_of_each_level(stream, form):
    """Log to standard error, of which a variable says that systemd's journal reads it."""
    found = os.fstat(2)
    os.environ["JOURNAL_STREAM"] = stream or f"{found.st_dev}:{found.st_ino}"
    journal = log.start(None, "debug", "writer")
    journal.json = form == "json"
    journal.subject = "a.b.60"
    for level in logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL:
        logging.getLogger("anything").log(level, "one\ntwo ü\x1b")
    journal.subject = ""
    try:
        int("x")
    except ValueError:
        logging.getLogger("anything").exception("failed")
    journal.redirect(Path("file"))
    logging.getLogger("anything").info("in the file")
    return [*journal.recent], Path("file").read_text()


PRIORITIES = {"DEBUG": 7, "INFO": 6, "WARNING": 4, "ERROR": 3, "CRITICAL": 2}


def test_in_the_journal_each_line_has_a_priority_and_neither_time_nor_pid():
    with started_isolated(lines_of_each_level, None, "text") as process:
        recent, in_file = process.result()
        lines = process.text.splitlines()
    assert lines[:10] == [
        line
        for level, priority in PRIORITIES.items()
        for line in (
            f"<{priority}>{level:<7} writer [a.b.60] one",
            f"<{priority}>    two ü\\x1b",
        )
    ]
    assert lines[10] == "<3>ERROR   writer failed"
    assert lines[11] == "<3>    Traceback (most recent call last):"
    assert all(line.startswith("<3>    ") for line in lines[11:])
    # Other places have no priorities; `psched status` shows the time of each error.
    assert re.fullmatch(HEAD + " writer in the file\n", in_file)
    assert len(recent) == 4
    assert all(re.match(r"\d{4}-\d\d-\d\dT", line) for line in recent)


def test_a_variable_that_names_another_stream_does_not_make_a_journal():
    with started_isolated(lines_of_each_level, "1:2", "text") as process:
        process.result()
        assert re.match(HEAD.replace("INFO ", "DEBUG"), process.text)


@pytest.mark.parametrize("stream", [None, "1:2"])
def test_json_is_one_object_per_line(stream):
    with started_isolated(lines_of_each_level, stream, "json") as process:
        recent, in_file = process.result()
        lines = process.text.splitlines()
        pid = process.pid
    if stream is None:
        assert [int(line[1]) for line in lines] == [*PRIORITIES.values(), 3]
        lines = [line[3:] for line in lines]
    objects = [json.loads(line) for line in lines]
    times = [each.pop("time") for each in objects]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", time) for time in times)
    same = {"pid": pid, "process": "writer"}
    about = {"key": "a.b", "occurrence": "a.b.60", "message": "one\ntwo ü\x1b"}
    assert objects[:5] == [{"level": level.lower(), **same, **about} for level in PRIORITIES]
    traceback = objects[5].pop("traceback")
    assert objects[5] == {"level": "error", **same, "message": "failed"}
    assert traceback.startswith("Traceback (most recent call last):\n")
    assert json.loads(in_file)["message"] == "in the file"
    assert len(recent) == 4
    assert all(re.match(r"\d{4}-\d\d-\d\dT", line) for line in recent)


@pytest.mark.usefixtures("journal")
@pytest.mark.parametrize(
    ("payload", "written"),
    [
        ("a\x1b[2Jb", r"a\x1b[2Jb"),
        ("a\rb\x08c\x7fd\0e", r"a\rb\x08c\x7fd\x00e"),
        ("a\x0bb\x0cc\x1cd\x1ee", r"a\x0bb\x0cc\x1cd\x1ee"),
        ("a\x85b\x9bc", r"a\x85b\x9bc"),
        ("a\u2028b\u2029c", r"a\u2028b\u2029c"),
        ("a\tb ü 漢", "a\tb ü 漢"),
    ],
)
def test_control_characters_are_escaped(path, payload, written):
    logging.getLogger("anything").info("<%s>", payload)
    [line] = path.read_text().splitlines()
    assert line.endswith(f"<{written}>")


def test_no_payload_can_forge_a_line(journal, path):
    forged = "2026-01-01T00:00:00.000Z [1] INFO    master stopped"
    journal.subject = f"key\n{forged}"
    logging.getLogger("anything").info("a\n%s\r\n%s", forged, forged)
    assert len([line for line in path.read_text().splitlines() if not line.startswith(" ")]) == 1


def half_a_character():
    log.start(Path("log"), "info", "writer")
    logging.getLogger("anything").info("<\ud800>")
    return Path("log").read_text()


def test_what_is_no_text_is_escaped():
    assert isolated(half_a_character).endswith("<\\ud800>\n")


class StopsTheTask:
    """TERM arrives while a task logs this."""

    def __str__(self):
        raise ProcessStopError("shutdown")


def test_a_task_that_logs_is_stopped_all_the_same(journal):  # noqa: ARG001  # it is the log
    with pytest.raises(ProcessStopError):
        logging.getLogger("anything").info("%s", StopsTheTask())


class Unprintable:
    def __str__(self):
        raise RuntimeError("no text")


def what_cannot_be_formatted():
    log.start(Path("log"), "info", "writer")
    logger = logging.getLogger("anything")
    for arguments in ("%d", "three"), ("%s", Unprintable()), ("%s %s", 1), (Unprintable(),):
        logger.info(*arguments)
    logger.info("next")
    return Path("log").read_text().splitlines()


def test_what_cannot_be_formatted_does_not_stop_who_logs_it():
    with started_isolated(what_cannot_be_formatted) as process:
        [line] = process.result()
        assert line.endswith("next")
        assert process.text.count("Logging error") == 4


# --- places --------------------------------------------------------------------------


def test_a_log_that_cannot_be_opened_is_refused_and_the_old_one_stays(journal, path, tmp_path):
    with pytest.raises(OSError, match="No such file"):
        journal.redirect(tmp_path / "missing" / "log")
    logging.getLogger("anything").info("here")
    assert "here" in path.read_text()


def test_a_redirected_log_goes_on_elsewhere(journal, path, tmp_path):
    other = tmp_path / "other"
    logging.getLogger("anything").info("one")
    journal.redirect(other)
    logging.getLogger("anything").info("two")
    assert "one" in path.read_text()
    assert "two" not in path.read_text()
    assert "two" in other.read_text()


@pytest.mark.usefixtures("journal")
def test_others_may_not_read_the_log(path):
    assert path.stat().st_mode & 0o007 == 0


def into_a_place_without_room(way):
    if way == "closed":
        os.close(2)
    elif way == "no reader":
        reader, writer = os.pipe()
        os.close(reader)
        os.dup2(writer, 2)
    elif way == "full":
        os.dup2(os.open("/dev/full", os.O_WRONLY), 2)
    elif way == "limited":
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
    log.start(Path("log") if way == "limited" else None, "info", "writer")
    for _ in range(3):
        logging.getLogger("anything").error("unheard")
    return "alive"


@pytest.mark.parametrize("way", ["closed", "no reader", "full", "limited"])
def test_a_log_without_room_stops_nobody(way):
    assert isolated(into_a_place_without_room, way) == "alive"


def onto_a_full_disk(as_json):
    journal = log.start(Path("log"), "info", "writer")
    journal.json = as_json
    logger = logging.getLogger("anything")
    logger.info("heard")
    room = Path("log").stat().st_size + 20
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, unlimited[1]))
    for number in range(3):
        logger.info("lost %d", number)
    assert Path("log").stat().st_size == room
    resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    logger.info("heard again")
    logger.info("and again")
    return Path("log").read_text()


@pytest.mark.parametrize("as_json", [True, False])
def test_lines_for_which_there_was_no_room_are_counted(as_json):
    first, torn, note, *last = isolated(onto_a_full_disk, as_json).splitlines()
    assert "heard" in first
    assert len(torn) == 19
    assert "3 lines of the log are left out here: they could not be written" in note
    assert [("heard again" in line, "and again" in line) for line in last] == [(1, 0), (0, 1)]
    for line in (first, note, *last) if as_json else ():
        json.loads(line)


def with_a_child_after_a_loss():
    log.start(Path("log"), "info", "writer")
    logger = logging.getLogger("anything")
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, unlimited[1]))
    logger.info("lost")
    resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    os.waitpid(fork(lambda: logger.info("of the child") or 0), 0)
    logger.info("of the parent")
    return Path("log").read_text()


def test_each_process_tells_its_own_loss():
    child, note, parent = isolated(with_a_child_after_a_loss).splitlines()
    assert "of the child" in child
    assert "1 lines of the log are left out here" in note
    assert "of the parent" in parent


# --- gathered lines ------------------------------------------------------------------


def test_gathered_lines_are_written_at_once_in_their_order_and_before_a_warning(journal, path):
    logger = logging.getLogger("anything")
    logger.info("0")
    with journal.gathering():
        logger.info("1")
        logger.info("2")
        assert numbers(path) == ["0"]
        journal.flush()
        assert numbers(path) == ["0", "1", "2"]
        logger.info("3")
        logger.warning("4")
        assert numbers(path) == ["0", "1", "2", "3", "4"]
        logger.info("5")
    assert numbers(path) == ["0", "1", "2", "3", "4", "5"]
    logger.info("6")
    assert numbers(path)[-1] == "6"


def numbers(path):
    """The last word of each line."""
    return [line.split()[-1] for line in path.read_text().splitlines()]


def test_gathered_lines_go_to_the_file_that_is_there_when_they_are_written(journal, path, tmp_path):
    with journal.gathering():
        logging.getLogger("anything").info("1")
        path.rename(tmp_path / "old")
        path.touch()
        logging.getLogger("anything").info("2")
    assert numbers(path) == ["1", "2"]
    assert not (tmp_path / "old").read_text()


def forked_while_lines_are_gathered():
    journal = log.start(Path("log"), "info", "writer")
    logger = logging.getLogger("anything")
    with journal.gathering():
        logger.info("parent")

        def child():
            logger.info("child")
            journal.flush()
            return 0

        os.waitpid(fork(child), 0)
        before = numbers(Path("log"))
    return before, numbers(Path("log"))


def test_a_forked_process_neither_gathers_nor_writes_what_its_parent_has_gathered():
    assert isolated(forked_while_lines_are_gathered) == [["child"], ["child", "parent"]]


def gathered_onto_a_full_disk(room):
    """The disk has so much room that only the first of three lines fits, and some bytes more."""
    journal = log.start(Path("log"), "info", "writer")
    logger = logging.getLogger("anything")
    logger.info("0")
    size = Path("log").stat().st_size
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 * size + room, unlimited[1]))
    for first in 1, 4:
        with journal.gathering():
            for number in range(first, first + 3):
                logger.info("%d", number)
    resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    logger.info("7")
    return Path("log").read_text()


@pytest.mark.parametrize("room", [0, 20])
def test_gathered_lines_for_which_there_was_no_room_are_counted(room):
    first, fits, *torn, note, last = isolated(gathered_onto_a_full_disk, room).splitlines()
    assert [line.split()[-1] for line in (first, fits, last)] == ["0", "1", "7"]
    assert [len(line) for line in torn] == [19] * bool(room)
    assert "5 lines of the log are left out here" in note


def with_a_line_of_another_after_a_torn_one():
    log.start(Path("log"), "info", "writer")
    other = os.open("log", os.O_WRONLY | os.O_APPEND)
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, unlimited[1]))
    logging.getLogger("anything").info("lost")
    resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    os.write(other, b"of another\n")
    logging.getLogger("anything").info("heard")
    return Path("log").read_text()


def test_a_torn_line_is_ended_before_another_process_writes():
    torn, other, note, heard = isolated(with_a_line_of_another_after_a_torn_one).splitlines()
    assert (len(torn), other) == (19, "of another")
    assert "1 lines of the log are left out here" in note
    assert "heard" in heard


# --- rotation ------------------------------------------------------------------------


def writer(path, number):
    journal = log.start(Path(path), "info", f"writer {number}")
    inbox = SignalInbox([USR2, TERM])
    say("ready")
    written = 0
    arrived = set()
    journal.subject = "s1.60"
    while TERM not in arrived:
        for _ in range(20):
            # Some are longer than what a pipe would take in one piece.
            logging.getLogger("w").info("line %d %s", written, "x" * (1 + written * 37 % 9000))
            written += 1
        arrived = inbox.wait(0.001)
        if USR2 in arrived:
            journal.reopen()
    return written


def test_a_log_that_is_renamed_under_eight_writers_loses_tears_and_doubles_no_line(tmp_path):
    path = tmp_path / "log"
    with ExitStack() as stack:
        writers = [
            stack.enter_context(started_isolated(writer, str(path), number)) for number in range(8)
        ]
        for process in writers:
            process.said("ready")
        for turn in range(15):
            path.rename(tmp_path / f"log.{turn}")
            for process in writers:
                kill(process.pid, USR2)
            wait_until(path.exists, what="the new log")
        for process in writers:
            kill(process.pid, TERM)
        wanted = {number: process.result() for number, process in enumerate(writers)}

    seen = Counter()
    for file in tmp_path.glob("log*"):
        for line in file.read_text().splitlines():
            found = LINE.fullmatch(line)
            assert found, f"torn: {line[:200]!r}"
            number, count, text = int(found[1]), int(found[2]), found[3]
            assert len(text) == 1 + count * 37 % 9000
            seen[number, count] += 1
    assert set(seen.values()) == {1}
    assert set(seen) == {(n, count) for n, written in wanted.items() for count in range(written)}


def test_standard_output_follows_if_it_went_to_the_log(tmp_path):
    assert isolated(redirected, str(tmp_path / "log")) == "not inheritable"
    assert (tmp_path / "log.1").read_text() == "before\n"
    assert (tmp_path / "log").read_text() == "after\nof a program\n"


def redirected(path):
    journal = log.start(Path(path), "info", "writer")
    [descriptor] = journal.descriptors
    os.dup2(descriptor, 1)
    say("before")
    Path(path).rename(f"{path}.1")
    journal.reopen()
    say("after")
    subprocess.run(["echo", "of a program"], check=True)
    return "inheritable" if os.get_inheritable(descriptor) else "not inheritable"


def test_a_log_that_cannot_be_reopened_goes_on_in_the_old_file_and_says_so(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    assert isolated(without_a_folder, str(folder)) == ["alive", True]
    text = (tmp_path / "moved" / "log").read_text()
    assert "cannot reopen the log" in text
    assert "still here" in text


def without_a_folder(folder):
    journal = log.start(Path(folder, "log"), "info", "writer")
    Path(folder).rename(Path(folder).with_name("moved"))
    journal.reopen()
    logging.getLogger("anything").info("still here")
    return "alive", not os.get_inheritable(journal.descriptors[0])


@pytest.mark.usefixtures("journal")
def test_who_was_not_told_follows_to_the_new_file_with_the_next_line(path, tmp_path):
    """A running task is not told that the log was rotated."""
    logging.getLogger("anything").info("one")
    path.rename(tmp_path / "log.1")
    logging.getLogger("anything").info("two")
    path.touch()  # by somebody who was told
    logging.getLogger("anything").info("three")
    assert "one" in (tmp_path / "log.1").read_text()
    assert "two" in (tmp_path / "log.1").read_text()
    assert path.read_text().endswith("three\n")
    assert "three" not in (tmp_path / "log.1").read_text()


# --- what a task puts in its place ---------------------------------------------------


def logging_where_a_task_has_left(kind, when):
    path = Path("log").absolute()
    if when == "before":
        leave(kind, path)
    journal = log.start(None, "info", "writer")
    journal.redirect(path)
    if when != "before":
        logging.getLogger("anything").info("at first")
        path.unlink()
        leave(kind, path)
    if when == "reopened":
        journal.reopen()
    logging.getLogger("anything").info("in the end")
    return path.is_file() and not path.is_symlink() and "in the end" in path.read_text()


@pytest.mark.parametrize("when", ["before", "while it is written", "reopened"])
@pytest.mark.parametrize("kind", [*KINDS, "nothing"])
def test_what_a_task_puts_in_its_place_blocks_nobody_and_is_not_followed(kind, when):
    with started_isolated(logging_where_a_task_has_left, kind, when) as process:
        if kind in EMPTY and "link" not in kind:
            assert process.result()
            assert kind in process.text.lower() or when != "before"
        else:
            process.result()


def logging_where_a_folder_has_replaced_the_file():
    path = Path("log").absolute()
    journal = log.start(path, "info", "writer")
    path.unlink()
    leave("full folder", path)
    journal.reopen()
    logging.getLogger("anything").info("meanwhile")
    shutil.rmtree(path)
    path.touch()
    logging.getLogger("anything").info("in the end")
    return path.read_text()


def test_nothing_is_written_to_a_deleted_file_that_a_folder_has_replaced():
    with started_isolated(logging_where_a_folder_has_replaced_the_file) as process:
        assert process.result().endswith("in the end\n")
        assert "meanwhile" in process.text
        line = "cannot reopen the log /.*/log: .*; the next lines go to standard error"
        assert re.search(line, process.text)


def logging_to_a_deleted_file_that_is_standard_error():
    path = Path("log").absolute()
    journal = log.start(path, "info", "daemon")
    os.dup2(journal.descriptors[0], 2)
    path.unlink()
    leave("full folder", path)
    journal.reopen()
    logging.getLogger("anything").info("in the end")
    return Path("/proc/self/fd/2").read_text()


def test_a_daemon_without_another_standard_error_stays_in_the_deleted_file():
    text = isolated(logging_to_a_deleted_file_that_is_standard_error)
    assert "; the next lines go to the same place as before" in text
    assert text.endswith("in the end\n")


@pytest.mark.parametrize("kind", ["link to a file", "link to a fifo", "link to itself"])
def test_a_link_that_is_not_roots_is_replaced_by_a_file(tmp_path, kind):
    path = tmp_path / "log"
    leave(kind, path)
    os.chown(path, 65534, 65534, follow_symlinks=False)
    with os.fdopen(log.open_file(str(path)), "w") as file:
        file.write("here")
    assert not path.is_symlink()
    assert path.read_text() == "here"


def test_a_link_of_roots_to_a_file_is_followed_and_one_to_a_fifo_refused(tmp_path):
    path, target = tmp_path / "log", tmp_path / "target"
    path.symlink_to(target)
    with os.fdopen(log.open_file(str(path)), "w") as file:
        file.write("there")
    assert target.read_text() == "there"
    target.unlink()
    os.mkfifo(target)
    with pytest.raises(NotRegularError, match="is a FIFO"):
        log.open_file(str(path))
    assert target.is_fifo()


def logging_to(name):
    journal = log.start(Path(name), "info", "writer")
    logging.getLogger("anything").info("one")
    journal.reopen()
    journal.redirect(Path("log"))
    logging.getLogger("anything").info("two")
    journal.redirect(Path(name))
    logging.getLogger("anything").info("three")
    return journal.descriptors


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/stderr"])
def test_a_standard_stream_can_be_named(name):
    with started_isolated(logging_to, name) as process:
        assert process.result() == []
        assert [line.split()[-1] for line in process.text.splitlines()] == ["one", "three"]


def test_a_device_can_be_the_log():
    with os.fdopen(log.open_file(os.devnull), "w") as file:
        file.write("nowhere")


# --- crashes -------------------------------------------------------------------------


def crashing(when):
    journal = log.start(None, "info", "writer")
    journal.dump_crashes()
    journal.redirect(Path("log"))
    if when == "after it was reopened":
        Path("log").rename("old")
        journal.reopen()
    elif when == "after it was redirected":
        journal.redirect(Path("other"))
        Path("log").rename("old")
        Path("other").rename("log")
    pid = os.fork()  # noqa: TID251  # a crash of this process would take its answer with it
    if not pid:
        os.abort()
    os.waitpid(pid, 0)
    old = Path("old").read_text() if Path("old").exists() else ""
    return Path("log").read_text().partition("\n")[0], old


@pytest.mark.parametrize("when", ["at once", "after it was reopened", "after it was redirected"])
def test_the_stack_of_a_crash_is_in_the_log(when):
    with started_isolated(crashing, when) as process:
        assert process.result() == ["Fatal Python error: Aborted", ""]
        assert process.text == ""


@pytest.mark.usefixtures("root")
def test_a_log_to_standard_error_needs_no_descriptor_of_its_own():
    journal = log.start(None, "info", "writer")
    assert journal.descriptors == []
    journal.reopen()
    assert sys.stderr is not None
