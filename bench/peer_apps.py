"""The peers' side of `peers.py`: the same empty task for each, and how tasks are enqueued.

Run in the peers' own environment. PEER names the peer, URL its server, and NOTES the file to which
each task appends a line. The first WARM tasks take a moment, so that every process gets some.
"""

import os
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

URL = os.environ["URL"]
WARM = int(os.environ["WARM"])

PROCESSES = 4

ORDERS, DONE = "orders", "done"
"""The pipes by which APScheduler's process, which alone may use its store, is told what to add."""


def note(number: int) -> None:
    """The task: note when it was started."""
    file = os.open(os.environ["NOTES"], os.O_WRONLY | os.O_APPEND)
    os.write(file, f"{time.time():.6f} {number}\n".encode())
    os.close(file)
    if number < WARM:
        time.sleep(0.1)


def nothing() -> None:
    """Prepare a peer that needs no preparation."""


def for_rq() -> tuple[Any, ...]:
    """RQ: a queue."""
    from redis import Redis  # noqa: PLC0415
    from rq import Queue  # noqa: PLC0415

    queue = Queue(connection=Redis.from_url(URL))

    def enqueue(numbers: Iterable[int], _at: float) -> None:
        queue.enqueue_many([Queue.prepare_data(note, (number,)) for number in numbers])

    return queue, nothing, enqueue


def for_celery() -> tuple[Any, ...]:
    """Celery: an application without a result backend."""
    from celery import Celery  # noqa: PLC0415

    celery = Celery("peer_apps", broker=URL)
    task = celery.task(note)
    return celery, nothing, each_by(task.delay)


def for_celery_late() -> tuple[Any, ...]:
    """Celery, but a task stays in the queue until it has been run."""
    celery, prepare_, enqueue = for_celery()
    celery.conf.task_acks_late = True
    return celery, prepare_, enqueue


def for_dramatiq() -> tuple[Any, ...]:
    """Dramatiq: an actor on Redis, with the middleware that it comes with."""
    import dramatiq  # noqa: PLC0415
    from dramatiq.brokers.redis import RedisBroker  # noqa: PLC0415

    broker = RedisBroker(url=URL)
    dramatiq.set_broker(broker)
    return broker, nothing, each_by(dramatiq.actor(note).send)


def for_huey() -> tuple[Any, ...]:
    """Huey: an instance on Redis."""
    from huey import RedisHuey  # noqa: PLC0415

    huey = RedisHuey("bench", url=URL)
    return huey, nothing, each_by(huey.task()(note))


def for_procrastinate() -> tuple[Any, ...]:
    """Procrastinate: an application on PostgreSQL."""
    from procrastinate import App, PsycopgConnector  # noqa: PLC0415

    procrastinate = App(connector=PsycopgConnector(conninfo=URL))
    task = procrastinate.task(note)

    def prepare_() -> None:
        with procrastinate.open():
            procrastinate.schema_manager.apply_schema()

    def enqueue(numbers: Iterable[int], _at: float) -> None:
        with procrastinate.open():
            task.batch_defer(*({"number": number} for number in numbers))

    return procrastinate, prepare_, enqueue


def for_pgqueuer() -> tuple[Any, ...]:
    """PgQueuer: a queue on PostgreSQL; its workers call `serve_pgqueuer`."""
    import asyncio  # noqa: PLC0415

    import psycopg  # noqa: PLC0415
    from pgqueuer.db import PsycopgDriver  # noqa: PLC0415
    from pgqueuer.queries import Queries  # noqa: PLC0415

    async def send(work: Callable[[Queries], Any]) -> None:
        async with await psycopg.AsyncConnection.connect(URL, autocommit=True) as connection:
            await work(Queries(PsycopgDriver(connection)))

    def prepare_() -> None:
        asyncio.run(send(lambda queries: queries.install()))

    def enqueue(numbers: Iterable[int], _at: float) -> None:
        payloads = [str(number).encode() for number in numbers]
        names, order = ["note"] * len(payloads), [0] * len(payloads)
        asyncio.run(send(lambda queries: queries.enqueue(names, payloads, order)))

    return None, prepare_, enqueue


def serve_pgqueuer() -> None:
    """Run a worker of PgQueuer; the task is run in its event loop, which is what costs least."""
    import asyncio  # noqa: PLC0415

    import psycopg  # noqa: PLC0415
    from pgqueuer import PgQueuer  # noqa: PLC0415
    from pgqueuer.db import PsycopgDriver  # noqa: PLC0415

    async def run(job: Any) -> None:  # noqa: ANN401  # it must be a coroutine
        note(int(job.payload))

    async def serve() -> None:
        connection = await psycopg.AsyncConnection.connect(URL, autocommit=True)
        queue = PgQueuer(PsycopgDriver(connection))
        queue.entrypoint("note")(run)
        await queue.run()

    asyncio.run(serve())


def for_apscheduler() -> tuple[Any, ...]:
    """APScheduler: its process is `serve_apscheduler`."""

    def prepare_() -> None:
        os.mkfifo(ORDERS)
        os.mkfifo(DONE)

    def enqueue(numbers: Iterable[int], at: float) -> None:
        Path(ORDERS).write_text(" ".join(map(str, [at, *numbers])))
        Path(DONE).read_text()

    return None, prepare_, enqueue


def serve_apscheduler() -> None:
    """Run a scheduler, and add tasks to it when told so."""
    from apscheduler.executors.pool import ProcessPoolExecutor  # noqa: PLC0415
    from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore  # noqa: PLC0415
    from apscheduler.schedulers.background import BackgroundScheduler  # noqa: PLC0415

    scheduler = BackgroundScheduler(
        jobstores={"default": SQLAlchemyJobStore(url=URL)},
        executors={"default": ProcessPoolExecutor(PROCESSES)},
        job_defaults={"misfire_grace_time": None},
    )
    scheduler.start()
    while True:
        at, *numbers = Path(ORDERS).read_text().split()
        due = datetime.fromtimestamp(float(at), UTC)
        for number in numbers:
            scheduler.add_job(note, "date", run_date=due, args=[int(number)])
        Path(DONE).write_text("")


def each_by(send: Callable[[int], object]) -> Callable[[Iterable[int], float], None]:
    """A function that enqueues tasks one by one."""

    def enqueue(numbers: Iterable[int], _at: float) -> None:
        for number in numbers:
            send(number)

    return enqueue


app, prepare, enqueue_many = globals()[f"for_{os.environ['PEER']}"]()


def enqueue(first: int, count: int, at: float) -> None:
    """Enqueue tasks of these numbers; APScheduler runs them at a time, the others at once."""
    enqueue_many(range(first, first + count), at)
