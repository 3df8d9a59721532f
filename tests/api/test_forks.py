"""A collection that was opened before a fork, as by a server that loads its application first."""

import os
import traceback
from pathlib import Path


def open_connections():
    """How many sockets and database files this process has open."""
    opened = 0
    for each in Path("/proc/self/fd").iterdir():
        try:
            target = str(each.readlink())
        except FileNotFoundError:
            continue  # it was the descriptor of the folder itself
        opened += target.startswith("socket:") or target.endswith(".db")
    return opened


def in_child(work):
    """Run the function in a forked process, and return its exit status: 0 if nothing was raised."""
    pid = os.fork()  # noqa: TID251  # as a server forks that knows nothing of psched
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:  # noqa: BLE001  # the test must not go on in the child
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_forked_process_opens_a_connection_of_its_own(schedules):
    schedules.push("before", "t")

    def child():
        inherited = open_connections()
        schedules.push("child", "t")
        assert open_connections() > inherited

    assert in_child(child) == 0
    inherited = open_connections()
    schedules.push("parent", "t")
    assert open_connections() == inherited, "the parent's connection was closed"
    assert {each.key for each in schedules} == {"before", "child", "parent"}


def test_a_child_that_closes_its_collection_leaves_the_parent_connected(schedules):
    schedules.push("before", "t")
    assert in_child(schedules.close) == 0
    inherited = open_connections()
    schedules.push("parent", "t")
    assert open_connections() == inherited
