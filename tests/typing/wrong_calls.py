"""Calls that mypy and pyright must refuse: each line, for the word in its comment.

Nothing runs this file.
"""

import psched


def report() -> None:
    pass


def calls(schedules: psched.ScheduleCollection) -> None:
    schedules.add("k", "t", crn="@daily")  # wrong: crn
    schedules.add("k", "t", cron=5)  # wrong: cron
    schedules.add("k", "t", evry=3600)  # wrong: evry
    schedules.add("k", "t", cron="@daily", catchup="newest")  # wrong: catchup
    schedules.add("k", "t", cron="@daily", expect={"lates": 5})  # wrong: expect
    schedules.add_many([{"key": "k", "crn": "@daily"}])  # wrong: crn
    schedules.add_many([{"cron": "@daily"}])  # wrong: key
    schedules.push("k", "t", max_attempts="3")  # wrong: max_attempts
    schedules.push("k", "t", max_attemps=3)  # wrong: max_attemps
    schedules.push("k", "t", cron="@daily")  # wrong: cron
    schedules.push(b"k", "t")  # wrong: str
    schedules.push_many([{"key": "k", "max_attemps": 3}])  # wrong: max_attemps
    schedules.push_many([{"key": "k", "max_attempts": "3"}])  # wrong: int
    schedules.modify("k", crn="@daily")  # wrong: crn
    schedules.edit("k", max_attempts="3")  # wrong: max_attempts
    schedules["k"].modify(crn="@daily")  # wrong: crn
    schedules["k"].edit(crn="@daily")  # wrong: crn
    schedules.select("k*").edit(crn="@daily")  # wrong: crn


def handler(task: psched.Task) -> None:
    task.schedules.add("k", "t", crn="@daily")  # wrong: crn
    task.schedules.push("k", "t", max_attemps=3)  # wrong: max_attemps
    task.schedules.modify("k", crn="@daily")  # wrong: crn
    task.scheduled_at + 5  # wrong: datetime


def serve() -> None:
    with psched.start(url="memory:") as jobs:
        jobs.add("report", run=report, evry=3600)  # wrong: evry
        jobs.add("report", run=report, every=3600, max_attempts="3")  # wrong: max_attempts
        jobs.task("report", crn="@daily")  # wrong: crn
    psched.start(urll="memory:")  # wrong: urll
    app = psched.App(urll="memory:")  # wrong: urll
    app.task("mail", max_attempts="3")  # wrong: max_attempts
    app.task("mail", evry=3600)  # wrong: evry
    psched.start(url="memory:", concurrency="3")  # wrong: concurrency
