"""Which modules are imported: each makes commands start later, and forks slower."""

import re
import sys
from pathlib import Path

import pytest

DRIVERS = {"sqlite": "sqlite3", "mariadb": "pymysql", "postgresql": "psycopg"}

COMMAND = """
import atexit, sys
atexit.register(lambda: print(*sys.modules, file=sys.stderr))
import pytest

from psched.cli import main
main()
"""

TELLING = """
    import sys
    from psched.application import Dispatch as BaseDispatch

    def tell(task):
        print(f"{task.key} BEGAN", *sorted(sys.modules), f"{task.key} END", sep="\\n")

    def ask(task):
        assert task.schedules["asks"].metadata().status == "running"
        print(f"{task.key} ASKED", *sorted(sys.modules), f"{task.key} END", sep="\\n")

    class Dispatch(BaseDispatch):
        routes = {"tell": tell, "ask": ask}
"""


def others(kind):
    """The drivers of the other databases, and SQLAlchemy's modules for them."""
    dialect = "mysql" if kind == "mariadb" else kind
    drivers = {driver for name, driver in DRIVERS.items() if name != kind}
    return drivers | {
        f"sqlalchemy.dialects.{name}" for name in {"sqlite", "mysql", "postgresql"} - {dialect}
    }


def test_a_command_loads_no_more_than_it_needs(service):
    def loaded(*words):
        return {*service.run(sys.executable, "-c", COMMAND, *words).stderr.split()}

    listing, helping = loaded("-c", str(service.config), "list"), loaded("--help")

    needless = {"croniter", "daemon", "psched.stores.sql.tables", "psched.files", "psched.service"}
    assert {"sqlalchemy", "sqlite3", "psched.cli.schedules.listing"} <= listing
    assert not listing & (needless | others("sqlite") | {"psched.cli.schedules.apply"})
    asking = loaded("-c", str(service.config), "health")
    assert "psched.cli.daemon.masters" in asking
    assert not asking & {"sqlalchemy", "sqlite3", "croniter", "psched.app", "psched.stores"}
    assert "psched.cli.commands" in helping
    assert not helping & {
        "sqlalchemy",
        "yaml",
        "croniter",
        "psched.app",
        "psched.cli.schedules.listing",
    }


@pytest.mark.extended
def test_a_task_has_loaded_what_its_database_needs_if_it_or_one_before_has_asked_for_schedules(
    each_service, database
):
    service = each_service
    service.write("telling.py", TELLING)
    service.configure(dispatch="telling:Dispatch", concurrency=1)
    master = service.start(forked=False)

    def loaded(key, type_):
        service.add(key, type_)
        # One name in each line, and a last line: a long line would be cut at any place.
        text = master.wait_for_log(f"{key} END")
        return {*re.split(rf"{key} (?:BEGAN|ASKED)", text)[1].split()}

    needed = {"sqlalchemy", DRIVERS[database.kind]}
    began = loaded("tells", "tell")
    asked = loaded("asks", "ask")
    # This task's runner was forked before the module was known to be needed.
    service.wait_for_finish("asks")
    loaded("waits", "tell")
    service.wait_for_finish("waits")
    follows = loaded("follows", "tell")

    assert not began & needed
    assert needed <= asked
    assert not asked & (others(database.kind) | {"daemon", "psched.stores.sql.tables"})
    assert {"sqlalchemy", "croniter"} <= follows


def test_the_master_has_loaded_the_driver_for_its_workers_and_has_no_connection(service):
    master = service.start()
    service.add("s1")
    service.wait_for_finish("s1")

    process = Path(f"/proc/{master.pid}")
    assert "/sqlalchemy/" in (process / "maps").read_text()
    opened = [str(each.readlink()) for each in (process / "fd").iterdir()]
    assert not [each for each in opened if "psched.db" in each]
    assert master.stop() == 0
