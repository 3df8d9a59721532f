"""fork(2) done the one safe way: what a child gets, and what it must not get."""

import os
import random
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from psched.process import kernel, tree
from psched.process.child import reap
from psched.process.signals import SignalInbox, unblock
from psched.process.spawn import spawn
from support.forks import fork_server
from support.isolated import isolated, say, started_isolated
from support.processes import kill
from support.waiting import has_ended, wait_for_end, wait_until

ROUNDS = 150
BY_PYTHON = {signal.SIGPIPE, signal.SIGXFSZ}
"""What an interpreter ignores from its start."""


SERVERS = []
ENDS = {}
"""Of those whose ends were told before anybody asked."""


def ended(pid):
    """Wait for a child, or for one of a fork server's; how it ended."""
    for server in SERVERS:
        # The list of the children of the server may lack one while another is reaped: proc(5).
        if tree.parent(pid) == server.pid:
            found = wait_until(server.exits, what=f"the end of {pid}")
            server.bury([each.pid for each in found])
            ENDS.update((each.pid, str(each)) for each in found)
    if pid in ENDS:
        return ENDS.pop(pid)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    [how] = [each for each in reap() if each.pid == pid]
    return str(how)


def told(main, way=spawn, **how):
    """What a child's main function returns, as a message; its exit status must be 0."""

    def child(link):
        unblock()
        link.deliver({"told": main()})
        return 0

    pid, link = way(child, **how)
    message = link.wait()
    assert ended(pid) == "exited with status 0"
    return message["told"]


def spawn_one(main, **how):
    """A single child of a fork server's."""
    [born] = spawn_alike(main, 1, **how)
    return born


def spawn_alike(main, count, **how):
    """Some children of a fork server's."""
    server = fork_server(lambda _place, link: main(link), **how)
    SERVERS.append(server)
    return [(pid, link) for _, pid, link, _ in server.fork(count)]


# --- refusals ------------------------------------------------------------------------


def beside_a_thread():
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        spawn(lambda _link: 0)
    except RuntimeError as error:
        return str(error)
    finally:
        over.set()
        thread.join()
    return "not refused"


def test_a_process_with_a_second_thread_is_refused_and_told_what_to_do():
    text = isolated(beside_a_thread)
    assert "2 threads" in text
    assert "handlers import" in text
    assert "when a task runs" in text


def without_processes_left(way):
    if os.getuid() == 0:  # whom no limit holds
        os.setuid(54321)
    resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
    descriptors = os.listdir("/proc/self/fd")  # noqa: PTH208
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    try:
        {"one": spawn, "alike": lambda main: spawn_alike(main, 3)}[way](lambda _link: 0)
    except OSError as error:
        after = signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return (
            type(error).__name__,
            after == mask | {signal.SIGUSR1},
            os.listdir("/proc/self/fd") == descriptors,  # noqa: PTH208
        )
    return "not refused"


@pytest.mark.parametrize("way", ["one", "alike"])
def test_a_fork_that_fails_leaves_the_mask_and_the_descriptors_as_they_were(way):
    assert isolated(without_processes_left, way) == ["BlockingIOError", True, True]


def with_room_for_two():
    if os.getuid() == 0:  # whom no limit holds
        os.setuid(54322)
    resource.setrlimit(resource.RLIMIT_NPROC, (4, 4))  # and the fork server
    descriptors = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    born = spawn_alike(lambda link: link.wait() or 7, 5)
    opened = len(os.listdir("/proc/self/fd")) - descriptors  # noqa: PTH208
    ends = []
    for pid, link in born:
        link.close()
        ends.append(ended(pid))
    return opened, ends


def test_of_several_as_many_are_forked_as_there_can_be():
    assert isolated(with_room_for_two) == [3, ["exited with status 7"] * 2]


def with_few_descriptors():
    opened = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    resource.setrlimit(resource.RLIMIT_NOFILE, (opened + 12, opened + 12))

    def child(link):
        link.deliver({"pid": os.getpid()})
        return 0

    born = spawn_alike(child, 8)
    told = [link.wait()["pid"] == pid for pid, link in born]
    for _, link in born:
        link.close()
    return told, len(os.listdir("/proc/self/fd")) - opened  # noqa: PTH208


def test_where_descriptors_are_short_fewer_are_forked_and_each_has_what_it_needs():
    told, left_open = isolated(with_few_descriptors)
    assert told in ([True] * 3, [True] * 4)
    assert left_open == 1  # the line to the fork server


def under_a_lowered_limit():
    os.dup2(os.open(os.devnull, os.O_RDONLY), 500)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))

    def look():
        return "500" in os.listdir("/proc/self/fd")  # noqa: PTH208

    return [told(look), told(look, spawn_one)]


def test_a_descriptor_above_a_limit_that_was_lowered_is_not_there_in_a_child():
    assert isolated(under_a_lowered_limit) == [False, False]


def neighbours():
    def child(link):
        link.deliver({"pid": os.getpid()})
        return 0 if link.wait() is None else 1

    born = spawn_alike(child, 4)
    told = [link.wait()["pid"] == pid for pid, link in born]
    # A link that a younger sibling held, too, would not end here.
    ends = []
    for pid, link in born:
        link.close()
        ends.append(ended(pid))
    return told, ends


def test_each_of_several_has_a_link_of_its_own_that_no_other_holds():
    assert isolated(neighbours) == [[True] * 4, ["exited with status 0"] * 4]


# --- the end of a child --------------------------------------------------------------


def raising(error):
    def main(_link):
        raise error

    return main


def endings():
    mains = [
        lambda _link: 0,
        lambda _link: 3,
        raising(SystemExit(4)),
        raising(SystemExit(2**40)),
        raising(SystemExit("why")),
        raising(ValueError("of the child")),
        raising(KeyboardInterrupt()),
        lambda _link: "no number",
    ]
    return [ended(spawn(main)[0]) for main in mains]


def test_a_child_exits_with_what_its_main_function_returns():
    with started_isolated(endings) as process:
        statuses = [text.removeprefix("exited with status ") for text in process.result()]
        # What is no exit status is a failure, whatever it is.
        assert statuses == ["0", "3", "4", "70", "70", "70", "70", "70"]
        assert "ValueError: of the child" in process.text
        assert "why" in process.text


def with_an_exit_handler():
    import atexit  # noqa: PLC0415

    atexit.register(say, "at exit")
    pid, _ = spawn(lambda _link: 0)
    return ended(pid)


def test_what_the_parent_has_registered_for_its_exit_stays_the_parents():
    with started_isolated(with_an_exit_handler) as process:
        process.result()
        assert process.text.count("at exit") == 1


class Broken:
    """A standard output of a user's own making."""

    def write(self, text):
        return len(text)

    def flush(self):
        raise RuntimeError("of the stream")


def with_output(stream):
    sys.stdout = {"none": None, "broken": Broken()}[stream]
    pid, _ = spawn(lambda _link: 5)
    # A child that came out of spawn would say it too.
    say("after spawn")
    sys.stdout = sys.__stdout__
    return ended(pid)


@pytest.mark.parametrize("stream", ["none", "broken"])
def test_no_child_comes_back_from_spawn_whatever_standard_output_is(stream):
    with started_isolated(with_output, stream) as process:
        assert process.result() == "exited with status 5"
        assert process.text.count("after spawn") == 1


# --- what a child inherits -----------------------------------------------------------


def with_text_in_its_buffers():
    sys.stdout.write("before. ")
    sys.stderr.write("an error. ")

    def child(_link):
        sys.stdout.write("of the child. ")
        return 0

    said = ended(spawn(child)[0])
    sys.stdout.write("after.")
    return said


def test_what_is_in_the_buffers_is_written_once():
    with started_isolated(with_text_in_its_buffers) as process:
        process.result()
        for text in "before. ", "an error. ", "of the child. ", "after.":
            assert process.text.count(text) == 1


def descriptors():
    found = {}
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        try:
            found[int(name)] = str(Path(f"/proc/self/fd/{name}").readlink())
        except FileNotFoundError:
            continue  # the listing's own
    return found


def with_open_descriptors():
    reader, writer = os.pipe()
    os.dup2(reader, 0)
    kept = os.open("kept", os.O_CREAT | os.O_WRONLY)
    blanked = [os.open("blanked", os.O_CREAT | os.O_WRONLY), reader, writer]
    database, server = socket.socketpair()
    os.set_inheritable(blanked[0], True)  # noqa: FBT003  # its parameter has no name
    inbox = SignalInbox([signal.SIGUSR1])
    _, other_link = spawn(lambda _link: 0)
    ours = descriptors()

    def look():
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.write(database.fileno(), b"the child speaks on its parent's connection")
        seen = descriptors()
        inheritable = [n for n in seen if n > 2 and os.get_inheritable(n)]
        listing = subprocess.run(["ls", "/proc/self/fd"], capture_output=True, check=True)
        return seen, inheritable, listing.stdout.decode().split()

    seen, inheritable, executed = told(look, keep=[kept])
    server.settimeout(0)
    try:
        heard = server.recv(100)
    except BlockingIOError:
        heard = b""
    seen = {int(number): target for number, target in seen.items()}
    link = [target for n, target in seen.items() if n not in ours or target != ours[n]]
    named = {"kept": kept, "blanked": blanked, "database": [database.fileno()]}
    named["links"] = [other_link.fileno(), server.fileno()]
    del inbox
    return ours, seen, named, link, inheritable, executed, heard.decode()


def test_a_child_has_what_was_kept_and_dev_null_for_all_else():
    ours, seen, named, others, inheritable, executed, heard = isolated(with_open_descriptors)
    assert seen["0"] == "/dev/null"
    assert [seen["1"], seen["2"]] == [ours["1"], ours["2"]]
    assert seen[str(named["kept"])].endswith("/kept")
    for number in *named["blanked"], *named["database"], *named["links"]:
        assert seen[str(number)] == "/dev/null"
    # Of all that is not /dev/null only the new link was not there before.
    assert len([target for target in others if target != "/dev/null"]) == 1
    assert heard == ""
    assert inheritable == [named["blanked"][0]]
    assert executed == ["0", "1", "2", "3"]  # 3 is the listing's own


def mask_and_ignored(*, restore):
    text = subprocess.run(
        ["cat", "/proc/self/status"],
        capture_output=True,
        check=True,
        text=True,
        restore_signals=restore,
    ).stdout
    fields = dict(line.split(":\t") for line in text.splitlines() if ":\t" in line)
    return [bits(fields["SigBlk"]), bits(fields["SigIgn"])]


def bits(mask):
    # The others are the C library's own.
    return [n for n in sorted(signal.valid_signals()) if int(mask, 16) >> (n - 1) & 1]


def signals_of_a_grandchild():
    for number in BY_PYTHON:
        assert signal.getsignal(number) is signal.SIG_IGN
    # A shell ignores QUIT for what it starts in the background, such as these tests.
    SignalInbox([signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD])

    def look():
        SignalInbox([signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGCHLD])
        return [mask_and_ignored(restore=restore) for restore in (True, False)]

    return told(look)


def test_what_a_child_executes_has_an_empty_mask_and_ignores_only_what_python_does():
    assert isolated(signals_of_a_grandchild) == [[[], []], [[], sorted(BY_PYTHON)]]


def handlers_of_a_child():
    SignalInbox([signal.SIGTERM, signal.SIGHUP])
    return told(
        lambda: [
            number.name
            for number in signal.valid_signals()
            if isinstance(number, signal.Signals)
            and signal.getsignal(number) not in (signal.SIG_DFL, signal.SIG_IGN, None)
        ]
    )


def test_a_child_has_none_of_its_parents_signal_handlers():
    assert isolated(handlers_of_a_child) == []


def sessions():
    def mine():
        return os.getsid(0) == os.getpid()

    return [told(mine, spawn_one), told(mine)]


def test_those_that_begin_alike_have_a_session_each():
    assert isolated(sessions) == [True, False]


# --- a parent's death ----------------------------------------------------------------


def idle(seconds):
    select.select([], [], [], seconds)


def parents_killed_at_random_instants(seed):
    rng = random.Random(seed)  # noqa: S311  # jitter
    kernel.adopt_orphans()
    counter = os.open("lived", os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def leaf(_link):
        os.write(counter, b".")
        unblock()
        while True:
            signal.pause()

    def middle(_link):
        unblock()
        spawn_one(leaf, keep=[counter])
        while True:
            signal.pause()

    longest, lived = 0.005, 0
    for _ in range(ROUNDS):
        pid, _ = spawn(middle, keep=[counter])
        idle(longest * rng.random())
        tree.send(pid, signal.SIGKILL)
        # On a slow machine, parents are given more time until some of them have a child.
        before, lived = lived, os.fstat(counter).st_size
        longest *= 1.2 if lived == before else 0.8

    def alone():
        list(reap())
        return not tree.children(os.getpid())

    wait_until(alone, what="the end of all")
    return Path("lived").stat().st_size


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.extended)])
def test_a_parent_killed_at_any_time_after_the_fork_takes_its_child_along(seed):
    lived = isolated(parents_killed_at_random_instants, seed)
    # Or the parents have died too early to prove anything, or too late.
    assert lived in range(1, ROUNDS + 1)


def parent_of_two():
    def child(_link):
        unblock()
        while True:
            signal.pause()

    say("bound", spawn_one(child)[0])
    say("free", spawn(child)[0])
    signal.pause()


def test_only_those_that_begin_alike_die_with_their_parent():
    with started_isolated(parent_of_two) as process:
        bound, free = int(process.said("bound")), int(process.said("free"))
        kill(process.pid)
        wait_for_end(bound)
        assert not has_ended(free)


def grandchild_of_a_child():
    kernel.adopt_orphans()

    def child(link):
        unblock()
        # The shell exits at once: what it leaves behind is an orphan.
        script = "sleep 1000 >/dev/null 2>&1 & echo $!"
        orphan = int(subprocess.run(["sh", "-c", script], capture_output=True, check=True).stdout)
        link.deliver({"adopted by me": orphan in tree.children(os.getpid())})
        tree.send(orphan, signal.SIGKILL)
        return 0

    _, link = spawn(child)
    return link.wait()


def test_orphans_come_to_the_nearest_child_that_was_forked_here():
    assert isolated(grandchild_of_a_child) == {"adopted by me": True}
