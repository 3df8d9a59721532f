"""psched health: whether this host can run due tasks."""

import json
import signal
import socket
import threading

import pytest
from click.testing import CliRunner

from psched.cli.commands import psched
from psched.master.runtime_folders import short_address
from support.processes import kill
from support.waiting import wait_until


def asked(service, *options):
    """The exit status and the line of psched health, run in this process, which is faster."""
    command = ["-c", str(service.config), "health", *options]
    done = CliRunner().invoke(psched, command, env=service.env)
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1
    return done.exit_code, done.stdout.rstrip("\n")


READY = (0, "ready")


@pytest.mark.redis
def test_a_store_that_stops_makes_the_host_not_ready_until_it_is_back(make_service, open_database):
    with open_database("redis") as database:
        service = make_service(database.url, processors=2)
        service.init()
        assert asked(service)[0] == 1
        assert asked(service)[1].startswith("not ready: no psched-master that serves table psched")

        database.server.kill()
        master = service.start()
        starting = "not ready: the master is starting: no worker has searched for due tasks yet; "
        wait_until(
            lambda: asked(service)[1].startswith(f"{starting}cannot connect to "),
            what="why the database is away",
        )
        database.server.start()
        wait_until(lambda: asked(service) == READY, what="the first answer of the database")

        database.server.kill()
        status, _ = wait_until(
            lambda: (
                (told := asked(service))[1].startswith("not ready: the database cannot be used:")
                and told
            ),
            what="the end of the database",
        )
        assert status == 1

        def both_say_why():
            told = json.loads(service.psched("status", "--json").stdout)
            assert told["ready"] is False
            assert told["problem"].startswith("the database cannot be used: ")
            return f"\nnot ready: {told['problem']}\n" in service.psched("status").stdout

        # The reason can change between the two: each worker tells the newest one that it has met.
        wait_until(both_say_why, what="the same reason in both forms")
        database.server.start()
        wait_until(lambda: asked(service) == READY, what="the database")
        assert master.stop() == 0


def test_the_master_and_its_workers_make_the_host_ready_or_not(service):
    service.configure(dispatch="jobs:Dispatch", child_heartbeat_limit=600)
    service.write("jobs.py", "from recorder import Dispatch")
    master = service.start()
    wait_until(lambda: asked(service) == READY, what="the first search for due tasks")
    done = service.psched("health", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {"ready": True, "problem": None}

    # A pause of all tasks is the operator's wish, and no fault of this host.
    assert service.psched("pause", "--all").returncode == 0
    assert asked(service, "--claims-within", "5s") == READY

    [worker] = master.workers()
    kill(worker, signal.SIGSTOP)
    wait_until(lambda: asked(service, "--claims-within", "1s")[0] == 1, what="a silent worker")
    assert asked(service, "--claims-within", "5m") == READY
    kill(worker, signal.SIGCONT)
    wait_until(lambda: asked(service, "--claims-within", "1s") == READY, what="the worker")

    service.write("jobs.py", "broken(")
    master.send(signal.SIGHUP)
    master.wait_for_log("could not be started")
    status, said = asked(service)
    assert status == 0
    assert said.startswith("ready, but the last restart failed: its first worker exited with")
    told = json.loads(service.psched("status", "--json").stdout)
    assert told["ready"] is True
    assert said.endswith(told["problem"])

    master.send(signal.SIGWINCH)
    status, said = wait_until(
        lambda: (told := asked(service))[0] == 1 and told, what="the pause of the master"
    )
    assert "WINCH" in said
    done = service.psched("health", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout) == {"ready": False, "problem": said.removeprefix("not ready: ")}

    service.write("jobs.py", "from recorder import Dispatch")
    master.send(signal.SIGHUP)
    wait_until(lambda: asked(service) == READY, what="the next generation")
    assert master.stop() == 0
    assert asked(service)[0] == 1


def test_of_several_masters_of_a_table_one_that_is_ready_is_enough(service, make_service, tmp_path):
    first = service.start()
    second = service.start()
    wait_until(lambda: asked(service) == READY, what="two masters")
    first.send(signal.SIGWINCH)
    first.wait_for_log("paused")
    assert asked(service) == READY

    # Without a configuration that can be read, each table needs a master that is ready.
    other = make_service(f"sqlite:///{tmp_path}/other.db")
    other.init()
    other.env["RUNTIME_DIRECTORY"] = service.env["RUNTIME_DIRECTORY"]
    third = other.start()
    unread = service.write("unread.yml", "url: ${NOBODYS_SECRET}")
    wait_until(lambda: service.psched("-c", unread, "health").returncode == 0, what="the third")
    third.send(signal.SIGWINCH)
    third.wait_for_log("paused")
    done = service.psched("-c", unread, "health")
    assert done.returncode == 1
    assert "WINCH" in done.stdout
    assert "NOBODYS_SECRET" in done.stderr
    assert "asking every master" in done.stderr
    assert asked(service) == READY
    assert (first.stop(), second.stop(), third.stop()) == (0, 0, 0)


def test_a_master_that_does_not_answer_is_not_ready(service):
    folder = service.folder / "run"
    folder.mkdir()
    with socket.socket(socket.AF_UNIX) as door:
        with short_address(folder / "master.123.sock") as address:
            door.bind(address)
        door.listen()

        def hang_up():
            door.accept()[0].close()

        hanging_up = threading.Thread(target=hang_up)
        hanging_up.start()
        told = asked(service)
        hanging_up.join()
    assert told == (1, "not ready: psched-master 123 does not answer: it has hung up")
