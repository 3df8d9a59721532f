"""Functions as tasks, with real workers: one module pushes and is the dispatch of the workers."""

import signal
import sys

import pytest

JOBS = """
    import asyncio
    import threading

    import psched

    app = psched.App()  # in a worker, the settings of the worker

    @app.task("mail", retry_wait=1)
    def mail(to, subject="Hello"):
        print("mail to", to, subject)

    @app.task("fan")
    def fan(task, names):
        for name in names:
            mail.options(key=f"mail-{name}").push(to=name)
        task.result = len(names)

    @app.task("later")
    async def later(name):
        await asyncio.sleep(0)
        mail.options(key=f"mail-{name}").push(to=name)

    @app.task("thread")
    def thread(name):
        pushing = threading.Thread(target=mail.options(key=f"mail-{name}").push, args=(name,))
        pushing.start()
        pushing.join()
"""


def push(service, code):
    """Run code in a program that imports the module, with the same configuration file."""
    service.env["PSCHED_CONFIG"] = str(service.config)
    done = service.run(sys.executable, "-c", f"from jobs import *\nprint({code}.key)")
    del service.env["PSCHED_CONFIG"]
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_program_pushes_calls_that_workers_run_and_these_push_others(service):
    service.configure(dispatch="jobs:app")
    service.write("jobs.py", JOBS)
    assert "handlers: 4 functions: ok" in service.psched("check").stdout
    service.init()
    key = push(service, "fan.push(['ann', 'bob'])")
    assert key.startswith("fan-")
    thread = push(service, "thread.options(key='t').push(name='eve')")
    later = push(service, "later.options(key='l').push(name='joe')")

    master = service.start()
    for each in key, thread, later, "mail-ann", "mail-bob", "mail-eve", "mail-joe":
        service.wait_for_finish(each)
    with service.schedules() as schedules:
        assert schedules[key].wait_for_end().result == 2
        assert len(schedules) == 7
    for name in "ann", "bob", "eve", "joe":
        master.wait_for_log(f"mail to {name} Hello")
    # Nothing was pushed by the settings of the module, which name a file in this folder.
    assert not [*service.folder.rglob(".local/**/*.db")]


def test_a_task_whose_arguments_do_not_match_waits_for_the_code_that_matches(service):
    service.configure(dispatch="jobs:app")
    service.write("jobs.py", JOBS)
    service.init()
    service.insert("k", "mail", data={"to": "ann", "copies": 2})
    master = service.start()
    master.wait_for_log(
        r"\[k\.\d+\] failed .*, again in .* s: InvalidError: data: does not match the function:"
        r" copies is not an argument: the function is mail\(to, subject='Hello'\)"
    )
    assert service.row("k").status == "waiting"

    service.write("jobs.py", JOBS.replace('(to, subject="Hello")', '(to, copies, subject="Hi")'))
    master.send(signal.SIGHUP)
    master.wait_for_log("mail to ann Hi")
    service.wait_for_finish("k")


@pytest.mark.extended
def test_a_program_with_jobs_of_its_own_includes_an_app(service):
    service.write("jobs.py", JOBS)
    service.write(
        "program.py",
        f"""
        import psched, jobs

        with psched.start({{"url": {service.url!r}}}, poll_interval=0.2, cgroup="off") as s:
            s.include(jobs.app)
            names = {{"names": ["ann"]}}
            s.add("hourly", every="1h", next_time=1_000_000_000, run=jobs.fan, data=names)

            @s.task("own")
            def own():
                jobs.mail.options(key="mail-own").push(to="own")
        """,
    )
    service.init()
    service.add("t", "thread", data={"name": "eve"})
    service.add("o", "own")
    master = service.start(sys.executable, "program.py")
    for each in "t", "mail-eve", "mail-own", "mail-ann":
        service.wait_for_finish(each)
    master.wait_for_log("mail to own Hello")
