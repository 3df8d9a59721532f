"""A whole service on Redis: the commands, a worker that is killed, and what is imported."""

import subprocess
import sys

import pytest

from support.processes import title
from support.waiting import wait_until

pytestmark = pytest.mark.redis


@pytest.fixture
def place(open_database):
    with open_database("redis") as database:
        yield database


@pytest.fixture
def redis_service(place, make_service):
    return make_service(place.url)


def test_the_commands_say_what_they_say_on_any_database(redis_service, place):
    service = redis_service
    done = service.psched("list", "--legacy")
    assert done.returncode == 1
    assert "run `psched init`" in done.stderr
    done = service.psched("init", "--quiet")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("prepared psched on ")
    assert service.psched("add", "s1", "recorder", "@daily", '{"k": "é"}').returncode == 0
    done = service.psched("add", "s1", "recorder", "@daily")
    assert (done.returncode, done.stdout) == (1, "")
    assert "the key 's1' is taken" in done.stderr
    assert "s1" in service.psched("list", "--legacy").stdout

    done = service.psched("check")

    assert (done.returncode, done.stderr) == (0, "")
    _, facts = done.stdout.split(f"database: {place.url}, table psched\n")
    shown = dict(line.strip().split(": ", 1) for line in facts.splitlines())
    assert shown["server"].startswith("Redis ")
    assert shown["saves"] == "every write, at once (appendfsync always)"
    assert shown["rights"] == "may be read and written: ok"
    assert service.psched("delete", "s1").returncode == 0
    assert "no schedule has the key 's1'" in service.psched("delete", "s1").stderr


def test_what_a_killed_worker_held_is_run_again_at_once(redis_service):
    service = redis_service
    service.init()
    service.add("k", data={"kills": "worker", "times": 1}, alive_time=600)
    service.configure(alive_time=600)
    master = service.start()
    service.wait_for_finish("k")
    runs = service.runs.runs("k")
    assert [run.completed for run in runs] == [False, True]
    assert len({run.worker for run in runs}) == 2
    assert master.stop() == 0
    assert service.row("k").row.fence == 2


@pytest.mark.extended
def test_a_task_on_redis_has_not_loaded_what_only_others_need(redis_service):
    service = redis_service
    service.init()
    service.write(
        "loaded.py",
        """
        import sys
        from psched.application import Dispatch as BaseDispatch

        def tell(task):
            task.schedules
            print("LOADED", sorted({"sqlalchemy", "pymysql", "redis"} & set(sys.modules)))

        class Dispatch(BaseDispatch):
            routes = {"tell": tell}
        """,
    )
    service.configure(dispatch="loaded:Dispatch")
    service.add("k", "tell")
    master = service.start(forked=False)
    assert "LOADED ['redis']" in master.wait_for_log("LOADED .*")
    assert all("redis" not in title(pid) for pid in master.workers())


PRINTS = """
import subprocess
import time
from pathlib import Path

from psched.application import Dispatch as BaseDispatch

def prints(task):
    print(task.key, "one", flush=True)
    subprocess.run(["sh", "-c", "echo two >&2; echo three"], check=True)
    while task.key == "late" and not Path(__file__).with_name("gate").exists():
        time.sleep(0.01)

class Dispatch(BaseDispatch):
    routes = {"prints": prints}
"""


@pytest.mark.extended
def test_what_a_task_prints_is_kept_and_shown(redis_service, place):
    service = redis_service
    service.init()
    service.write("printing.py", PRINTS)
    service.configure(dispatch="printing:Dispatch", output="both")
    assert "  output: kept\n" in service.psched("check").stdout
    service.add("k", "prints")
    service.add("late", "prints")
    master = service.start()
    service.wait_for_finish("k")

    shown = service.psched("logs", "k")

    assert (shown.returncode, shown.stdout) == (0, "k one\ntwo\nthree\n")
    assert "k, attempt 1 of " in shown.stderr
    shown = service.psched("logs", "k", "--json")
    assert '"text": "k one\\ntwo\\nthree\\n"' in shown.stdout

    # What a running task prints comes from its master.
    live = wait_until(
        lambda: "three" in (shown := service.psched("logs", "late")).stdout and shown,
        what="live output",
    )
    assert live.stdout == "late one\ntwo\nthree\n"
    # A full memory loses output, and delays no end of a task.
    number = int(place.url.rpartition("/")[2])
    place.server.query("CONFIG", "SET", "maxmemory", 1, db=number)
    try:
        service.open_gate("gate")
        service.wait_for_finish("late")
        master.wait_for_log("outputs of attempts are lost .1 so far.: .*memory is full")
    finally:
        place.server.query("CONFIG", "SET", "maxmemory", 0, db=number)
    assert service.psched("logs", "late").returncode == 1
    assert master.stop() == 0


def test_without_its_driver_it_is_said_what_to_install(redis_service):
    script = "import sys; sys.modules['redis'] = None; from psched.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script, "-c", str(redis_service.config), "list"],
        capture_output=True,
        text=True,
        check=False,
        env=redis_service.env,
    )
    assert done.returncode == 1
    assert "needs the driver redis: pip install 'psched[redis]'" in done.stderr
