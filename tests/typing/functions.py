"""Functions that are tasks: calls that mypy and pyright must accept, and marked ones to refuse.

Nothing runs this file.
"""

from typing import ClassVar, assert_type

import psched
from psched import Schedule, Task
from psched.application import Dispatch as BaseDispatch
from psched.application.dispatch import Routes

app = psched.App("psched.yml", processors=2)


@app.task("mail", max_attempts=3)
def mail(to: str, subject: str = "Hello") -> int:
    return len(to + subject)


@app.task("report")
def report(task: Task, days: int) -> str:
    return f"{task.key} {days}"


@app.task("fetch")
async def fetch(url: str) -> bytes:
    return url.encode()


class Dispatch(BaseDispatch):
    routes: ClassVar[Routes] = {"mail": mail, "report": report, "fetch": fetch}


def pushes(task: Task) -> None:
    assert_type(mail.push(to="ann"), Schedule)
    assert_type(report.push(days=3), Schedule)
    assert_type(fetch.push("https://example.com"), Schedule)
    mail.options(key="k", delay="1m").push("ann", subject="Hi")
    report.push(3)
    mail.push(too="ann")  # wrong: too
    mail.push(to=3)  # wrong: str
    mail.options(delay=60).push()  # wrong: to
    report.push(task)  # wrong: Task
    report.push(days="3")  # wrong: int
    mail.data(to="ann", sbject="Hi")  # wrong: sbject
    mail.options(max_attemps=3)  # wrong: max_attemps


async def calls(task: Task) -> None:
    assert_type(mail("ann"), int)
    assert_type(report(task, days=3), str)
    assert_type(await fetch("https://example.com"), bytes)
    mail("ann", sbject="Hi")  # wrong: sbject
