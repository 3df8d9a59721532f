"""What the helper of root says to hostile requests; it starts nothing here."""

import os
import pwd
import socket
import struct
import subprocess
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from psched.process import run_as_helper
from psched.process.program_runner import packed
from psched.process.run_as_helper import Helper, open_group
from psched.process.run_as_list import RefusedError
from support.cgroups import cgroup_of, own_cgroup
from support.waiting import PATIENCE

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the helper runs as root")

NOBODY = pwd.getpwnam("nobody")

GOOD = [b"run", b"nobody", b"", b"1", b"/bin/true", b"PSCHED_KEY=k"]

REQUEST = packed(GOOD)


@pytest.fixture
def listed():
    """Root's list, in a folder that only root may write."""
    path = Path(f"/run/psched-test-{os.getpid()}")
    path.write_text("nobody /bin/true\nnobody /bin/echo *\nroot /bin/true\n")
    path.chmod(0o644)
    yield str(path)
    path.unlink()


def ask(request, listed, *, caller=NOBODY.pw_uid, descriptors=4, peer=0):
    """What the helper answers to a request, and what it logs."""
    os.seteuid(peer)
    try:
        ours, theirs = socket.socketpair()
    finally:
        os.seteuid(0)
    null = os.open(os.devnull, os.O_RDWR)
    with ours, theirs:
        head, rest = request[:8], request[8:]
        if head:
            socket.send_fds(ours, [head], [null] * descriptors)
            ours.sendall(rest)
        ours.shutdown(socket.SHUT_WR)
        Helper(theirs, caller, listed).serve()
        os.close(null)
        theirs.close()
        answer = b""
        # It is reset if the helper has not read everything.
        with suppress(ConnectionResetError):
            while chunk := ours.recv(1000):
                answer += chunk
        return answer.decode()


def test_a_question_is_answered_and_starts_nothing(listed):
    assert ask(packed([b"ask", *GOOD[1:]]), listed, descriptors=0) == "allowed\n"


def test_only_the_service_and_root_may_ask(listed, capfd):
    answer = ask(REQUEST, listed, caller=12_345, peer=NOBODY.pw_uid)

    assert answer == "refused only the user of the service may ask\n"
    assert capfd.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    "fields",
    [
        [b""],
        [b"run"],
        [b"run", b"nobody", b"", b"1"],
        [b"run", b"nobody", b"", b"0", b"/bin/true"],
        [b"run", b"nobody", b"", b"-1", b"/bin/true"],
        [b"run", b"nobody", b"", b"2", b"/bin/true"],
        [b"run", b"nobody", b"", b"one", b"/bin/true"],
        [b"kill", b"nobody", b"", b"1", b"/bin/true"],
        [b"\xff\xfe"] * 5,
    ],
)
def test_a_request_that_is_not_understood_is_refused(fields, listed, capfd):
    assert ask(packed(fields), listed) == "refused the request cannot be understood\n"
    assert capfd.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    "request_",
    [
        b"",
        REQUEST[:4],
        REQUEST[:8],
        REQUEST[:-1],
        struct.pack("!II", 1 << 31, 0),
        struct.pack("!II", 4, 1) + b"run\0",
        struct.pack("!II", 0, 0),
    ],
)
def test_a_request_of_a_wrong_size_is_refused(request_, listed):
    assert ask(request_, listed).startswith("refused the request")


def test_a_request_that_comes_byte_by_byte_keeps_no_process_of_root(listed, monkeypatch):
    monkeypatch.setattr(run_as_helper, "_PATIENCE", 0.3)
    ours, theirs = socket.socketpair()
    sent, over = [], threading.Event()

    def drip():
        with suppress(OSError):
            ours.sendall(struct.pack("!II", 1000, 0))
            for byte in bytes(1000):
                ours.sendall(bytes([byte]))
                sent.append(byte)
                if over.wait(0.02):
                    return

    slow = threading.Thread(target=drip)
    slow.start()
    with ours, theirs:
        theirs.settimeout(PATIENCE)
        Helper(theirs, NOBODY.pw_uid, listed).serve()
        over.set()
        slow.join()
        assert ours.recv(100).startswith(b"refused the request")
    assert len(sent) < 1000


@pytest.mark.parametrize("descriptors", [0, 1, 2, 3, 5])
def test_a_request_without_four_descriptors_is_refused(descriptors, listed):
    # Of more, the kernel gives none beyond those that are asked for; then the group is refused.
    assert ask(REQUEST, listed, descriptors=descriptors).startswith("refused the")


@pytest.mark.parametrize(
    ("place", "value", "reason"),
    [
        (1, b"root", "root is root"),
        (1, b"daemon", "no line for user daemon"),
        (1, b"nobody\n", "this host has no user"),
        (1, b"", "this host has no user ''"),
        (4, b"/bin/false", "does not allow user nobody: /bin/false"),
        (4, b"/bin/../bin/true", "does not allow user nobody"),
        (2, b"/tmp", "cwd: "),
        (5, b"LD_PRELOAD=/tmp/x.so", "env: "),
        (5, b"nonsense", "env: "),
    ],
)
def test_what_the_list_does_not_allow_is_refused(place, value, reason, listed, capfd):
    fields = [*GOOD]
    fields[place] = value

    answer = ask(packed(fields), listed)

    assert answer.startswith("refused ")
    assert reason in answer
    assert answer.count("\n") == 1
    assert capfd.readouterr().err.count("\n") == 1


def test_nothing_that_is_sent_forges_a_line_of_the_log(listed, capfd):
    fields = [b"run", b"nobody", b"", b"2", b"/bin/false", b"a\nstarted as root\x1b[2J"]

    answer = ask(packed(fields), listed)

    assert answer.count("\n") == 1
    logged = capfd.readouterr().err
    assert logged.count("\n") == 1
    assert "\x1b" not in logged


def test_a_process_whose_control_group_is_not_the_services_gets_nothing_started(listed):
    answer = ask(REQUEST, listed)

    assert answer.startswith("refused the task has no control group")
    with pytest.raises(RefusedError, match="control group"):
        open_group(1, NOBODY.pw_uid, 0)


@pytest.fixture
def groups(monkeypatch):
    """The control groups of a master that nobody runs, and of a task of it, with a process."""
    with own_cgroup("run_as") as above:
        inner = above / "psched.1.2/nonce/run-3"
        inner.mkdir(parents=True)
        mounted = str(above).removesuffix(cgroup_of(os.getpid()).rstrip("/") + f"/{above.name}")
        monkeypatch.setattr(run_as_helper, "_CGROUPS", mounted)
        for folder in above / "psched.1.2", inner.parent, inner:
            os.chown(folder, NOBODY.pw_uid, NOBODY.pw_gid)
        asking = subprocess.Popen(["sleep", "1000"])
        yield inner, asking.pid
        asking.kill()
        asking.wait()


def test_only_the_group_of_a_task_is_joined(groups):
    task, pid = groups
    for group in task, task.parent, task.parents[1]:
        (group / "cgroup.procs").write_text(str(pid))
        kill = os.open(group / "cgroup.kill", os.O_WRONLY)
        if group == task:
            os.close(open_group(pid, NOBODY.pw_uid, kill))
        else:
            with pytest.raises(RefusedError, match="no control group of its own"):
                open_group(pid, NOBODY.pw_uid, kill)
        os.close(kill)


def test_root_writes_to_no_other_file_than_what_kills_the_group(groups, tmp_path):
    task, pid = groups
    (task / "cgroup.procs").write_text(str(pid))
    for path in tmp_path / "file", task.parent / "cgroup.kill", task / "cgroup.freeze":
        other = os.open(path, os.O_WRONLY | os.O_CREAT)
        with pytest.raises(RefusedError, match="brings no file that kills"):
            open_group(pid, NOBODY.pw_uid, other)
        os.close(other)


def test_a_process_that_is_gone_gets_nothing_started():
    with pytest.raises(RefusedError, match="control group"):
        open_group(2**22 + 1, 0, 0)


def test_nothing_is_started_for_a_task_that_was_killed_meanwhile(listed, monkeypatch, capfd):
    # The group was read before the task was killed, and then a folder or a directory was slow.
    null = os.open(os.devnull, os.O_RDWR)
    monkeypatch.setattr(run_as_helper, "open_group", lambda *_: os.dup(null))
    ours, theirs = socket.socketpair()
    with theirs:
        with ours:
            socket.send_fds(ours, [REQUEST[:8]], [null] * 4)
            ours.sendall(REQUEST[8:])
        Helper(theirs, NOBODY.pw_uid, listed).serve()
    os.close(null)

    logged = capfd.readouterr().err
    assert "refused: who has asked is gone" in logged
    assert "started" not in logged
