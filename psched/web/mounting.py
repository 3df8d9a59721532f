"""Makes the pages from settings and rules: for the command web, and for `psched.web.app`."""

import os
from functools import partial
from pathlib import Path

from psched.app import CLOCK, open_schedules
from psched.base.errors import of_replica
from psched.cli.top.snapshot import Reader
from psched.config import Config
from psched.master.reports.queries import ask_all
from psched.master.runtime_folders import socket_folders
from psched.web.asked import DEADLINE, PATIENCE
from psched.web.gate import Gate, Rules
from psched.web.secret import Secret, usual_file
from psched.web.site import Site, Source


def site_of(settings: Config, rules: Rules, token_file: str | os.PathLike[str] | None) -> Site:
    """The pages of the schedules that the settings name."""
    file = usual_file(os.environ) if token_file is None else Path(token_file)
    gate = Gate(rules, Secret(file, clock=CLOCK), CLOCK)
    ask = partial(ask_all, socket_folders(os.environ), PATIENCE)

    def opened(store: Config) -> Source:
        schedules = open_schedules(store, program="psched web", patience=DEADLINE)
        told = str if store is settings else of_replica
        # The masters of this host serve the database of `settings`, whichever is read.
        reader = Reader(schedules, settings, ask_masters=ask, clock=CLOCK, told=told)
        return Source(schedules, reader, told)

    replica = settings.of_replica
    return Site(
        opened(settings), settings, gate, replica=None if replica is None else opened(replica)
    )
