"""The command ``bin/chaos``."""

import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import click

from support.chaos.run import Chaos
from support.servers import Dynalite, MariaDB, PostgreSQL, Redis
from support.servers.base import Server
from support.servers.dynalite import credentials
from support.session_folders import session_folder, storage

_SERVERS: Mapping[str, type[Server]] = {
    "mariadb": MariaDB,
    "postgresql": PostgreSQL,
    "redis": Redis,
    "dynalite": Dynalite,
}


@contextmanager
def _server(store: str) -> Iterator[Server | None]:
    if store == "sqlite":
        yield None
        return
    with credentials(), session_folder() as home, _SERVERS[store](home) as server:
        yield server


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--seconds", default=60.0, show_default=True, help="How long something is done.")
@click.option("--seed", type=int, help="Decides what is done; by default a new one is drawn.")
@click.option("--store", type=click.Choice(["sqlite", *_SERVERS]), default="sqlite")
def main(seconds: float, seed: int | None, store: str) -> None:
    """Run three real masters on one store, amid faults, and check psched's promises.

    The seed decides what is done, and when; how the processes react to it differs each time. The
    exit status is 1 if a promise was not kept.
    """
    seed = secrets.randbelow(10**9) if seed is None else seed
    folder = Path(tempfile.mkdtemp(prefix="psched-chaos-", dir=storage()))
    with _server(store) as server:
        chaos = Chaos(folder, seed, seconds, server)
        click.echo("\n".join(map(str, chaos.plan)))
        result = chaos.run()
    if result.violations:
        click.echo(f"{result.report}\nthe logs are in {folder}")
    else:
        shutil.rmtree(folder)
    click.echo(result.line)
    sys.exit(bool(result.violations))


if __name__ == "__main__":
    main()
