"""A worker that declares its program's jobs in a store that has no table yet."""

import os

from psched.app import open_schedules, read_config
from psched.base import log
from psched.master.generation_spec import WorkerIdentity
from psched.process.inheritance import open_descriptors
from psched.process.spawn import spawn
from psched.service.jobs import JobDeclarer, Jobs
from psched.service.worker_boot import WorkerBoot
from psched.worker.worker import prepare_process
from support.isolated import isolated
from support.waiting import wait_until


def declared_after_others_have_died():
    settings = read_config({"url": "sqlite:///psched.db"})
    jobs = Jobs("program", "program", settings, lambda: 0)
    jobs.add("job", lambda: None, {"every": 3600})
    journal, place, master = (
        log.start(None, "info", "master"),
        WorkerIdentity(0, 1, "nonce"),
        os.getpid(),
    )

    def work(link):
        inbox = prepare_process(journal, place)
        boot = WorkerBoot(link, place, inbox, journal, master, None, own=open_descriptors())
        declare = JobDeclarer(jobs, prune=False).declare
        return boot.serve(settings, jobs.dispatch(), report=False, prepare=declare)

    _, link = spawn(work)
    link.send({"go": True})
    # A master also inherits the nonces of workers that had another database.
    link.send({"recover": ["of a dead worker"]})
    wait_until(
        lambda: any("recovered" in message for message in link.receive()), what="the recovery"
    )
    link.send({"stop": None, "hurry": False})
    with open_schedules(settings) as schedules:
        return [each.key for each in schedules.list()]


def test_a_new_table_is_made_although_leases_of_dead_workers_are_to_be_released():
    assert isolated(declared_after_others_have_died) == ["job"]
