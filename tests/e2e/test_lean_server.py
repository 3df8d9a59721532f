"""A fork server that is executed anew: what it loads, what it hides, and how it ends an upgrade."""

import json
import shutil
from pathlib import Path

import psched
from support.processes import kill, server_of
from support.waiting import has_ended, wait_for_end

TELLING = """
    import ctypes, json, os, sys, threading
    from pathlib import Path
    from psched.application import Dispatch as Base

    LOADED_BY = os.getpid()
    # Python makes this lock anew in each fork, unless psched leaves that out.
    LOCK = threading._active_limbo_lock
    with open("imports", "a") as file:
        file.write(f"{LOADED_BY}\\n")
    COMMAND = Path("/proc/self/cmdline").read_text() + Path("/proc/self/environ").read_text()

    def tell(task):
        found = {
            "server": os.getppid(),
            "loaded_by": LOADED_BY,
            "command": COMMAND,
            "dumpable": ctypes.CDLL(None).prctl(3, 0, 0, 0, 0),
            "path": sys.path,
            "argv": sys.argv,
            "hooks": threading._active_limbo_lock is not LOCK,
            "modules": [*sys.modules],
        }
        Path(task.key).write_text(json.dumps(found))

    class Dispatch(Base):
        routes = {"tell": tell}
"""


def told(service, key):
    """What a task tells of its process."""
    service.add(key, "tell")
    service.wait_for_finish(key)
    return json.loads((service.folder / key).read_text())


def test_it_loads_the_handlers_and_only_what_they_need_and_hides_what_the_worker_tells_it(
    service, monkeypatch
):
    service.write("telling.py", TELLING)
    monkeypatch.setenv("SECRET", "open-sesame")
    service.env["SECRET"] = "open-sesame"
    service.configure(dispatch="telling:Dispatch")
    service.configure(monitor=True, hooks={"told": {"webhook": "http://127.0.0.1:9/${SECRET}"}})
    master = service.start()
    [worker] = master.workers()

    found = told(service, "one")

    server = server_of(worker)
    assert found["server"] == found["loaded_by"] == server
    assert [int(pid) for pid in (service.folder / "imports").read_text().split()] == [server]
    assert not {"sqlalchemy", "click", "yaml", "psched.config", "random"} & {*found["modules"]}
    assert "open-sesame" not in found["command"]
    assert found["dumpable"] == 0
    assert not found["hooks"]
    assert found["path"][0] == str(service.folder)
    assert master.stop() == 0
    assert has_ended(server)


def test_one_that_has_died_is_replaced_by_one_that_loads_the_handlers_again(service):
    service.write("telling.py", TELLING)
    service.configure(dispatch="telling:Dispatch")
    master = service.start()
    [worker] = master.workers()
    first = server_of(worker)

    kill(first)
    wait_for_end(first)

    found = told(service, "one")
    assert found["loaded_by"] == found["server"] != first
    assert master.workers() == [worker]
    assert master.stop() == 0


def test_one_that_cannot_load_the_handlers_any_more_is_started_again_when_it_can(service):
    service.write("telling.py", TELLING)
    service.configure(dispatch="telling:Dispatch")
    master = service.start()
    [worker] = master.workers()
    first = server_of(worker)

    service.write("telling.py", "raise ValueError('half of a deployment')")
    kill(first)
    master.wait_for_log("the fork server died: the handlers cannot be loaded: .*half of a deploy")
    service.write("telling.py", TELLING)

    found = told(service, "one")
    assert found["loaded_by"] == found["server"] != first
    assert master.workers() == [worker]
    assert master.stop() == 0
    assert master.text.count("Traceback") == 1


def test_after_an_upgrade_of_psched_fork_servers_are_forked_and_this_is_said_once(service):
    package = Path(
        shutil.copytree(Path(psched.__file__).parent, service.folder / "site" / "psched")
    )
    service.env["PYTHONPATH"] = str(package.parent)
    service.write("telling.py", TELLING)
    service.configure(dispatch="telling:Dispatch")
    master = service.start()
    [worker] = master.workers()
    before = told(service, "before")

    for code in "raise ImportError('a module of another version')", "# of another version":
        (package / "runner" / "stop.py").write_text(code)
        server = server_of(worker)
        kill(server)
        wait_for_end(server)
        after = told(service, code[:1])
        assert after["server"] == after["loaded_by"] != before["server"]

    assert "psched.config" not in before["modules"]
    assert "psched.config" in after["modules"]  # those of the worker
    assert master.text.count("psched itself was changed on this host since this service") == 1
    assert master.workers() == [worker]
    assert master.stop() == 0
