"""Asynchronous handlers, of which some misbehave."""

import asyncio
import functools
import os
import random
import signal
import time
from pathlib import Path

from psched.application import Base
from psched.application.dispatch import running_task
from psched.base.errors import ProcessStopError
from psched.runner.coroutines import Cancellation
from support.misbehaving_handlers import note


async def returns(task):
    assert running_task() is task
    await asyncio.sleep(0)
    await asyncio.to_thread(task.update_data, {"from": "a thread"})
    task.extend()


async def raises(_task):
    await asyncio.sleep(0)
    raise ValueError("no")


async def retries(task):
    await asyncio.sleep(0)
    task.retry(7)


async def cancels_itself(_task):
    asyncio.current_task().cancel()
    await asyncio.sleep(0)


async def runs_a_program(task):
    program = await asyncio.create_subprocess_exec(
        "sh", "-c", "echo it; exit 3", stdout=asyncio.subprocess.PIPE
    )
    printed, _ = await program.communicate()
    task.update_data({"printed": printed.decode(), "status": program.returncode})


async def leaves_work_behind(_task):
    await asyncio.create_subprocess_exec("sleep", "1000")
    leaves_work_behind.task = asyncio.create_task(asyncio.sleep(1000))


def returns_a_coroutine(task):
    return returns(task)


class Callable:
    async def __call__(self, task):
        await returns(task)


class Runs:
    def __init__(self, task):
        self.task = task

    async def run(self):
        await returns(self.task)


class Performs(Base):
    """Has plain and asynchronous steps."""

    def before_perform(self):
        self.steps = ["before"]
        return True

    async def perform(self):
        await asyncio.sleep(0)
        self.steps.append("perform")
        raise ValueError("no")

    async def after_perform(self):
        await asyncio.sleep(0)
        self.task.update_data({"steps": self.steps})


class Declines(Performs):
    async def before_perform(self):
        await asyncio.sleep(0)
        return False


def logged(step):
    """A decorator whose wrapper is no coroutine function."""

    @functools.wraps(step)
    def wrapper(self):
        return step(self)

    return wrapper


class Hides(Base):
    """Has a step that does not look like a coroutine function."""

    @logged
    async def perform(self):
        note("never")


async def restores_term(task):
    """Have asyncio replace psched's handler of TERM by the default action."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, note, "TERM")
    await shows_itself(task)


def returns_a_generator(_task):
    return (number for number in range(3))


async def generates(_task):
    yield 1


def returns_an_asynchronous_generator(task):
    return generates(task)


def working():
    """Tell the test that the handler's code runs."""
    Path("working").touch()


async def awaits(task):
    """Wait until a file exists."""
    gate = Path(task.data["gate"])
    while not gate.exists():  # noqa: ASYNC110, ASYNC240  # another process makes it
        await asyncio.sleep(0.01)


async def cleans_up(task):
    working()
    try:
        await awaits(task)
    except BaseException as error:
        note(type(error).__name__)
        raise
    finally:
        for _ in range(20):
            await asyncio.sleep(0.01)
        for _ in range(20):
            time.sleep(0.01)  # noqa: ASYNC251  # what blocks the loop is not interrupted, either
        note("cleaned up")


async def clings(task):
    working()
    while True:
        try:
            await awaits(task)
        except BaseException as error:  # noqa: BLE001
            note(type(error).__name__)


async def computes(_task):
    working()
    try:
        while True:
            pass
    except ProcessStopError as error:
        note(f"interrupted for {error}")
        raise


async def waits_for_a_thread(task):
    working()
    try:
        await asyncio.to_thread(time.sleep, 1000)
    finally:
        note("cancelled")
        task.extend()


async def asks(task):
    working()
    try:
        while True:
            task.extend()
            await asyncio.sleep(0)
    except asyncio.CancelledError:
        task.retry(7)


class Listens:
    """Has a ``kill``, which is called instead of a cancellation."""

    def __init__(self, task):
        self.task = task
        self.reasons = []

    async def run(self):
        working()
        while len(self.reasons) < 5:  # noqa: ASYNC110  # a signal handler adds them
            await asyncio.sleep(0.01)
        note(" ".join(self.reasons))

    def kill(self, reason):
        self.reasons.append(reason)


async def shows_itself(task):
    descriptors = os.listdir("/proc/self/fd")  # noqa: PTH208  # as numbers
    task.update_data({"pid": os.getpid(), "open": len(descriptors)})


HANDLERS = {
    each.__name__: each
    for each in (
        returns,
        raises,
        retries,
        cancels_itself,
        runs_a_program,
        leaves_work_behind,
        returns_a_coroutine,
        Runs,
        Performs,
        Declines,
        Hides,
        restores_term,
        returns_a_generator,
        returns_an_asynchronous_generator,
        cleans_up,
        clings,
        computes,
        waits_for_a_thread,
        asks,
        Listens,
        shows_itself,
    )
} | {"partly": functools.partial(returns), "callable": Callable()}


async def cancelled_beside_others(after):
    """Have a signal cancel a task that speaks with another one; return what that one raises."""
    loop = asyncio.get_running_loop()
    questions, answers = asyncio.Queue(), asyncio.Queue()

    async def answer():
        while True:
            await answers.put(await questions.get())

    async def ask():
        while True:
            questions.put_nowait(1)
            await answers.get()

    answering, asking = asyncio.ensure_future(answer()), asyncio.ensure_future(ask())
    cancellation = Cancellation(loop, asking)
    signal.signal(signal.SIGALRM, lambda *_: cancellation.ask("timeout"))
    signal.setitimer(signal.ITIMER_REAL, after)
    await asyncio.wait([asking])
    if answering.done():
        return repr(answering.exception())
    answering.cancel()
    return None


def cancelled_many_times(times):
    """What the other task has raised, in so many event loops."""
    rng = random.Random(1)  # noqa: S311  # moments of signals
    found = {asyncio.run(cancelled_beside_others(rng.uniform(2e-4, 12e-4))) for _ in range(times)}
    return [*found]
