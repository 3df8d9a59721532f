"""Processes as a parent sees them: the kernel's, and a test's, are alike."""

import os
import signal

import pytest

from psched.process import kernel
from psched.process.child import SystemSpawner
from psched.testing import ManualSpawner
from support.isolated import isolated
from support.waiting import wait_until


def hears_and_exits(link):
    link.send({"hello": link.wait()["name"]})
    return 7


def hangs(_link):
    signal.pause()
    return 0


class Kernel:
    """Children that do by themselves what a test does in the place of others."""

    def __init__(self):
        kernel.adopt_orphans()
        self.spawner = SystemSpawner()

    def let_talk(self, pid):
        """The child runs what it was spawned for."""

    def let_hang(self, pid):
        """The child runs what it was spawned for."""


class Manual:
    def __init__(self):
        self.spawner = ManualSpawner()

    def let_talk(self, pid):
        [child] = [child for child in self.spawner.born if child.pid == pid]
        [message] = child.receive()
        child.say(hello=message["name"])
        child.exits(7)

    def let_hang(self, pid):
        pass


KINDS = {"kernel": Kernel, "manual": Manual}


def reaped(spawner):
    return [(each.pid, each.status, each.signal) for each in spawner.reap()]


def story(kind):
    """What a parent sees of one child that exits, and of one that is killed."""
    world = KINDS[kind]()
    spawner = world.spawner
    seen = [len(spawner.children())]
    talks, link = spawner.spawn(hears_and_exits, keep=())
    link.send({"name": "you"})
    world.let_talk(talks)
    seen.append(wait_until(link.receive, what="its answer"))
    stays, other = spawner.spawn(hangs, keep=())
    world.let_hang(stays)
    seen += [{stays} <= spawner.children(), spawner.is_alive(stays), other.receive()]
    seen.append([each[1:] for each in wait_until(lambda: reaped(spawner), what="its end")])
    seen += [reaped(spawner), spawner.is_alive(talks), link.receive(), link.closed]
    spawner.send(stays, signal.SIGKILL)
    [(pid, *how)] = wait_until(lambda: reaped(spawner), what="its end")
    seen += [pid == stays, how, spawner.children() == frozenset(), other.receive(), other.closed]
    spawner.send(stays, signal.SIGKILL)  # it is gone: that is no error
    seen += [spawner.kill_all(frozenset()), sorted(spawner.living_below(frozenset()))]
    return seen


EXPECTED = [
    0, [{"hello": "you"}],
    True, True, [],
    [[7, None]], [], False, [], True,
    True, [None, 9], True, [], True,
    True, [],
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_parent_sees_the_same_of_a_real_child_and_of_a_tests(kind):
    assert isolated(story, kind) == EXPECTED


def orphaned():
    """A child leaves a process that ignores everything but KILL."""
    kernel.adopt_orphans()
    spawner = SystemSpawner()

    def leaves(_link):
        if os.fork() == 0:  # noqa: TID251  # as any task may
            signal.pause()
        return 0

    spared, _ = spawner.spawn(hangs, keep=())
    pid, _link = spawner.spawn(leaves, keep=())
    wait_until(lambda: any(each.pid == pid for each in spawner.reap()), what="its end")
    [orphan] = spawner.living_below(frozenset([spared]))
    told = str(orphan) in spawner.describe(orphan)
    wait_until(lambda: spawner.kill_all(frozenset([spared])), what="the orphan's end")
    return told, spawner.is_alive(orphan), spawner.is_alive(spared)


def test_what_a_real_child_leaves_is_seen_and_killed_and_who_is_spared_lives():
    assert isolated(orphaned) == [True, False, True]
