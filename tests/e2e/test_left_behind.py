"""What a task leaves in the folders of its service keeps it neither from starting nor stopping."""

import itertools
import os
import shutil
import signal
from contextlib import suppress

import pytest

from support.odd_files import KINDS, leave
from support.waiting import wait_until

LEFT = [*KINDS, "bytes"]


def leave_all(service, kinds):
    """Put something in the place of every file of the service's: of one kind after the other."""
    run = service.folder / "run"
    run.mkdir(exist_ok=True)
    names = {"nonces.1.1", "master.1.sock", *(path.name for path in run.glob("master.*"))}
    paths = [
        *(run / name for name in sorted(names)),
        service.folder / "log",
        service.folder / "pid",
    ]
    for path, kind in zip(paths, itertools.cycle(kinds), strict=False):
        # In the place of these files a folder with something in it stays: it may be somebody's.
        if kind in {"device", "full folder"} and path.parent != run:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        if kind == "bytes":
            path.write_bytes(b"\xff\xfe\x1b[2J")
        else:
            leave(kind, path)
        if path.is_symlink():
            # Those that are root's own are followed.
            os.chown(path, 65534, 65534, follow_symlinks=False)


def serves(log, generation):
    line = f"generation {generation} serves"
    with suppress(FileNotFoundError):  # the master has just removed what is in its place
        # By its content: a FIFO in its place is not to be waited for by the test either.
        return log.is_file() and line in log.read_text(errors="replace")
    return False


@pytest.mark.parametrize(
    "first",
    [0, pytest.param(3, marks=pytest.mark.extended), pytest.param(6, marks=pytest.mark.extended)],
)
def test_a_master_starts_reopens_reloads_tells_and_stops_whatever_was_left(service, first):
    """Each kind in the place of each file is for the tests of the modules that make the files."""
    kinds = LEFT[first:] + LEFT[:first]
    log = service.folder / "log"
    service.configure(log="log", pid_file="pid")
    service.env["INVOCATION_ID"] = "1"
    leave_all(service, kinds)

    master = service.start(generation=0)
    wait_until(lambda: serves(log, 1), what="a log of its own")
    assert service.psched("status").returncode == 0

    leave_all(service, kinds)
    master.send(signal.SIGUSR2)
    master.send(signal.SIGHUP)
    wait_until(lambda: serves(log, 2), what="the next generation")
    told = wait_until(
        lambda: (said := service.psched("status")).returncode == 0 and said, what="an answer"
    )
    assert f"psched-master {master.pid}" in told.stdout
    service.add("s1")
    service.wait_for_finish("s1")
    assert master.stop() == 0
    assert log.is_file()
    assert not log.is_symlink()
    assert "master stopped" in log.read_text(errors="replace")


def test_a_folder_in_the_place_of_the_log_has_it_go_on_where_it_is(service):
    service.configure(log="log")
    leave("full folder", service.folder / "log")
    master = service.start()
    assert "cannot log to" in master.text
    (service.folder / "log" / "file").unlink()
    master.send(signal.SIGHUP)
    wait_until(lambda: serves(service.folder / "log", 2), what="the log")
    assert master.stop() == 0


def test_a_master_starts_without_log_and_pid_file_where_full_folders_are(service):
    service.configure(log="log", pid_file="pid")
    for name in "log", "pid":
        leave("full folder", service.folder / name)

    master = service.start()

    assert "/log, which is a folder, and no regular file" in master.text
    assert "/pid is a folder, and no regular file: running without a pid file" in master.text
    for name in "log", "pid":
        assert (service.folder / name / "file").exists()
    assert service.psched("status").returncode == 0
    master.stop()
    assert (service.folder / "pid" / "file").exists()


def test_a_master_writes_again_what_a_task_removes_from_its_runtime_folder(service):
    service.start()
    run = service.folder / "run"

    def names():
        return sorted(path.name for path in run.iterdir() if not path.name.startswith("."))

    kinds = ["master", "nonces", "service", "wake"]
    wait_until(
        lambda: [name.partition(".")[0] for name in names()] == kinds, what="all of the files"
    )
    before = names()
    for name in before:
        (run / name).unlink()
    wait_until(lambda: names() == before, what="the files that are written again")
