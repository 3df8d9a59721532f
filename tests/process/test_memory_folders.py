"""The folders of schedules in memory, which tasks can write, too."""

import os
import subprocess
from pathlib import Path

import pytest

from psched.memory import MemoryFolder
from support.isolated import isolated
from support.odd_files import KINDS, leave

LEFT = [*KINDS, "any depth"]


def joining_where_something_was_left(kind):
    os.environ["RUNTIME_DIRECTORY"] = str(Path.cwd())
    dead = Path(f"psched-{os.geteuid()}-4194305-1").absolute()
    dead.mkdir()
    if kind == "any depth":
        (dead / "lock").touch()
        deep = dead
        for _ in range(1200):
            deep /= "x"
            deep.mkdir()
    else:
        leave(kind, dead / "lock")
    owner = MemoryFolder()
    owner.join(os.getpid())
    ours = Path(owner.url.removeprefix("sqlite:///")).parent
    owner.leave()
    (ours / "lock").unlink()
    leave("fifo" if kind == "any depth" else kind, ours / "lock")
    next_one = MemoryFolder()
    next_one.join(os.getpid())
    next_one.leave()
    # What is too deep for Python is too deep for who clears up after the test, too.
    subprocess.run(["rm", "-rf", dead], check=True)
    return (ours / "lock").is_file()


@pytest.mark.parametrize("kind", LEFT)
def test_what_a_task_has_left_in_them_is_in_nobodys_way(kind):
    assert isolated(joining_where_something_was_left, kind)
