"""Forks that leave out what Python's own modules do at each fork."""

import json
import subprocess
import sys
import textwrap

PROGRAM = textwrap.dedent(
    """
    import json, os, sys
    from psched.process import fork_hooks
    fork_hooks.load()
    import logging, random, threading

    calls = []
    os.register_at_fork(after_in_child=lambda: calls.append("user's"))
    lock, handler = threading._active_limbo_lock, logging.NullHandler()

    def forked(look):
        reader, writer = os.pipe()
        if not (pid := os.fork()):
            os.write(writer, json.dumps(look()).encode())
            os._exit(0)
        os.close(writer)
        os.waitpid(pid, 0)
        return json.loads(os.read(reader, 10000))

    def look():
        thread = threading.Thread(target=calls.append, args=["thread"])
        thread.start()
        thread.join()
        return {
            "hooks": threading._active_limbo_lock is not lock,
            "native": threading.main_thread().native_id == os.getpid(),
            "calls": calls,
            "random": random.random(),
        }

    def look_twice():
        fork_hooks.forked()
        return [look(), forked(look)]

    with fork_hooks.without_hooks():
        found = forked(look_twice), forked(look_twice)
    print(json.dumps([found, forked(look)]))
    """
)


def test_a_fork_without_hooks_leaves_out_those_of_python_and_only_in_that_fork():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=True)
    ((first, below), (second, _)), usual = json.loads(done.stdout)

    assert not first["hooks"]
    assert first["native"]
    assert first["calls"] == ["user's", "thread"]
    # Each child has random numbers of its own.
    assert first["random"] != second["random"]
    # A task that forks itself, and a fork that is none of a fork server.
    for other in below, usual:
        assert other["hooks"]
