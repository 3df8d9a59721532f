"""What type checkers say of functions that are tasks; `.ci/run lint` runs mypy on this file.

Each ``type: ignore`` is an error that mypy must find: mypy reports an ignore that is not needed.
"""

from typing import assert_type

import psched
from psched import Schedule, Task

app = psched.App("psched.yml", processors=2)


@app.task("mail", max_attempts=3)
def mail(to: str, subject: str = "Hello") -> int:
    """A function without the task."""
    return len(to + subject)


@app.task("report")
def report(task: Task, days: int) -> str:
    """A function that takes the task."""
    return f"{task.key} {days}"


def pushes(task: Task) -> None:
    """The arguments of a push are those of the function without the task."""
    assert_type(mail.push(to="ann"), Schedule)
    assert_type(report.push(days=3), Schedule)
    mail.options(key="k", delay="1m").push("ann", subject="Hi")
    report.push(3)
    mail.push(too="ann")  # type: ignore[call-arg]
    mail.push(to=3)  # type: ignore[arg-type]
    mail.options(delay=60).push()  # type: ignore[call-arg]
    report.push(task, 3)  # type: ignore[call-arg, arg-type]
    report.push(days="3")  # type: ignore[arg-type]
    mail.data(to="ann", sbject="Hi")  # type: ignore[call-arg]


def calls(task: Task) -> None:
    """A call has the types of the function."""
    assert_type(mail("ann"), int)
    assert_type(report(task, days=3), str)
    report(days=3)  # type: ignore[call-arg]
