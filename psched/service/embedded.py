"""``psched.Worker.run``: a user's program calls it to become a service."""

import logging
from typing import NoReturn

from psched.app import ConfigLike, read_config
from psched.application.dispatch import Dispatch
from psched.application.router import instance
from psched.base.errors import ConfigError, LoadError
from psched.master.generation_spec import BAD_CONFIG, BAD_HANDLERS
from psched.service.generation import WorkerExit, current_worker_boot
from psched.service.main_program import become_master, with_program_folder
from psched.service.worker_boot import WorkerBoot

_log = logging.getLogger("psched.worker")


class Worker:
    """Turns a user's program into a service: a master, and workers that run tasks.

    Use it in the main thread: the process becomes a master. When a worker runs the program again,
    the program must have no other thread by then, because the worker forks.
    """

    @staticmethod
    def run(
        dispatch: type[Dispatch] | Dispatch,
        config_loader: ConfigLike,
    ) -> NoReturn:
        """Run the tasks of the schedules until a signal stops the service; this call never returns.

        The process becomes a master. The master runs the program again, from its first line, in
        each of its workers. A restart (HUP, USR1) starts new workers, which therefore read the
        program, its modules and the configuration again.

        Args:
            dispatch: maps the types of tasks to the handlers that run the tasks.
            config_loader: a `psched.config.Config`, a mapping of settings, or the path of a
                configuration file; or a function that returns one of these. Each worker calls the
                function and reads the file.

        Raises:
            RuntimeError: the workers cannot run the program again, because it is neither a file
                nor a module, or because this call is in a module that psched imports.
        """
        boot = current_worker_boot()
        if boot is None:
            become_master()
        raise WorkerExit(_serve(boot, dispatch, config_loader))


def _serve(
    boot: WorkerBoot,
    dispatch: type[Dispatch] | Dispatch,
    config_loader: ConfigLike,
) -> int:
    try:
        settings = read_config(config_loader)
    except ConfigError as error:
        _log.error("%s", error)
        return BAD_CONFIG
    except Exception:  # noqa: BLE001  # a user's loader can raise any exception
        _log.exception("the configuration cannot be loaded")
        return BAD_CONFIG
    try:
        settings = with_program_folder(settings)
        return boot.serve(settings, instance(dispatch, "the dispatch"), report=True)
    except LoadError as error:
        _log.error("%s", error)
        return BAD_HANDLERS
