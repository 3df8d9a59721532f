"""What is loaded, and what is not: a command waits for it, a worker forks it with each runner."""

import sys

DRIVERS = {"sqlite": "sqlite3", "mariadb": "pymysql", "postgresql": "psycopg"}

COMMAND = """
import atexit, sys
atexit.register(lambda: print(*sys.modules, file=sys.stderr))
from psched.cli import main
main()
"""

TELLING = """
    import sys
    from psched.application import Dispatch as BaseDispatch

    def tell(task):
        print("LOADED", *sorted(sys.modules))

    class Dispatch(BaseDispatch):
        routes = {"tell": tell}
"""


def others(kind):
    """The drivers of other databases, and SQLAlchemy's modules for these."""
    dialect = "mysql" if kind == "mariadb" else kind
    drivers = {driver for name, driver in DRIVERS.items() if name != kind}
    return drivers | {
        f"sqlalchemy.dialects.{name}" for name in {"sqlite", "mysql", "postgresql"} - {dialect}
    }


def test_a_command_loads_no_more_than_it_needs(service):
    def loaded(*words):
        return {*service.run(sys.executable, "-c", COMMAND, *words).stderr.split()}

    listing, helping = loaded("-c", str(service.config), "list"), loaded("--help")

    needless = {"croniter", "daemon", "psched.backends.tables", "psched.files", "psched.service"}
    assert {"sqlalchemy", "sqlite3", "psched.cli.listing"} <= listing
    assert not listing & (needless | others("sqlite") | {"psched.cli.apply"})
    assert "psched.cli.commands" in helping
    assert not helping & {"sqlalchemy", "yaml", "croniter", "psched.app", "psched.cli.listing"}


def test_a_worker_has_not_loaded_what_only_other_databases_need(each_service, database):
    each_service.write("telling.py", TELLING)
    each_service.configure(dispatch="telling:Dispatch")
    each_service.add("k", "tell")

    master = each_service.start()

    loaded = {*master.wait_for_log("LOADED .*").split()}
    assert {"sqlalchemy", DRIVERS[database.kind]} <= loaded
    assert not loaded & (others(database.kind) | {"daemon", "psched.backends.tables"})
    # All workers share what the master has loaded; and none is to load it in the midst of a task.
    assert "croniter" in loaded
