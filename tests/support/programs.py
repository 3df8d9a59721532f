"""A program in another language, run for every task by ``psched run --exec``."""

from support.service import Master, Service

WORK = """\
    #!/bin/sh
    # Notes its arguments and its input in one write, as others do at the same time.
    echo "$* $(cat)" >>"$NOTES/ran"
    while [ -e "$NOTES/hold" ]; do sleep 0.05; done
    [ ! -e "$NOTES/fail" ] || exit 3
    echo "$*" >>"$NOTES/done"
"""


def with_work(service: Service) -> Service:
    """Give a service a program for its tasks, ``work.sh``, and no handlers."""
    service.configure(dispatch=None, load_path=None)
    service.write("work.sh", WORK).chmod(0o755)
    service.env["NOTES"] = str(service.folder)
    return service


def run_work(service: Service, *options: object, generation: int = 1) -> Master:
    """A master whose workers run the program for everything."""
    command = [*service.psched_command, "run", "--exec", "./work.sh"]
    return service.start(*map(str, (*command, *options)), generation=generation)


def lines(service: Service, name: str) -> list[str]:
    """The program's notes: what it has begun to run, or what it has finished."""
    file = service.folder / name
    return file.read_text().splitlines() if file.exists() else []
