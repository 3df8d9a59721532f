"""Handlers as users write them: how they are found, and how their results are recorded."""

import re
import signal

from support.run_log import completed
from support.waiting import wait_until

JOBS = """
    import re
    from psched.application import Base, Dispatch as BaseDispatch

    class ByClass(Base):
        def run(self):
            print("by class:", self.task.type, self.task.data)

    def by_function(task):
        print("by function:", task.type, task.data)

    class Pattern(Base):
        def run(self):
            print("by pattern:", self.task.type, self.task.data)

    class Hooks(Base):
        def before_perform(self):
            print("before:", self.task.type)
            return self.task.type != "unwilling"

        def perform(self):
            print("perform:", self.task.type)
            if self.task.type == "failing" and self.task.attempt == 1:
                raise ValueError("not yet")

        def after_perform(self):
            print("after:", self.task.type, self.task.attempt)

    class Dispatch(BaseDispatch):
        routes = {
            re.compile(r"^regexp-.*$"): Pattern,
            re.compile(r"^regexp-z"): "nowhere:never",
            "class": ByClass,
            "function": by_function,
            "regexp-exact": by_function,
            "lazy-class": "lazily:Lazy",
            "lazy-function": "lazily:functions.lazy",
            "hooks": Hooks, "failing": Hooks, "unwilling": Hooks,
        }
"""

LAZILY = """
    from psched.application import Base

    class Lazy(Base):
        def run(self):
            print("lazily by class:", self.task.type)

    class functions:
        @staticmethod
        def lazy(task):
            print("lazily by function:", task.type)
"""


def test_types_lead_to_handlers_by_text_and_by_pattern(service):
    service.configure(dispatch="jobs:Dispatch", processors=2)
    service.write("jobs.py", JOBS)
    service.write("lazily.py", LAZILY)
    types = ["class", "function", "regexp-a", "regexp-zz", "regexp-exact", "lazy-class"]
    types += ["lazy-function", "hooks", "failing", "unwilling"]
    for type_ in types:
        service.add(type_, type_, data={"k": type_})

    master = service.start()
    for type_ in types:
        service.wait_for_finish(type_)
    assert master.stop() == 0

    # Each line follows the time and the key, which is the type here.
    lines = re.findall(r"^\d{4}-\S+\dZ (\S+: .*)", master.text, re.MULTILINE)
    assert {*lines} >= {
        "class: by class: class {'k': 'class'}",
        "function: by function: function {'k': 'function'}",
        "regexp-a: by pattern: regexp-a {'k': 'regexp-a'}",
        "regexp-zz: by pattern: regexp-zz {'k': 'regexp-zz'}",
        "regexp-exact: by function: regexp-exact {'k': 'regexp-exact'}",
        "lazy-class: lazily by class: lazy-class",
        "lazy-function: lazily by function: lazy-function",
    }
    printed = [line.partition(": ")[2] for line in lines]
    hooks = [line for line in printed if re.match(r"(before|perform|after): ", line)]
    assert [line for line in hooks if "hooks" in line] == [
        "before: hooks", "perform: hooks", "after: hooks 1",
    ]  # fmt: skip
    assert [line for line in hooks if "failing" in line] == [
        "before: failing", "perform: failing", "after: failing 1",
        "before: failing", "perform: failing", "after: failing 2",
    ]  # fmt: skip
    assert [line for line in hooks if "unwilling" in line] == ["before: unwilling"]


def test_what_r_loads_is_a_module_or_a_file_and_a_bare_name_is_looked_for_in_it(service):
    service.configure(dispatch=None, load_path=None)
    service.write("elsewhere/jobs.py", JOBS)
    service.write("elsewhere/lazily.py", LAZILY)
    service.write("unrelated.py", "")
    service.add("s1", "class", data={"k": 1})
    service.add("s2", "lazy-class")

    master = service.start(
        *[*service.psched_command, "run", "-I", "elsewhere"],
        *["-r", "./unrelated.py", "-r", "elsewhere/jobs.py", "--processors", 2, "Dispatch"],
    )

    service.wait_for_finish("s1")
    service.wait_for_finish("s2")
    assert "by class: class {'k': 1}" in master.text
    assert len(master.workers()) == 2


def test_a_file_does_not_take_the_place_of_another_module(service):
    service.write("here/queue.py", "")
    service.write("here/jobs.py", "")
    service.write("there/jobs.py", "")

    def refusal(*files):
        require = [word for file in files for word in ("-r", file)]
        master = service.start(*service.psched_command, "run", *require, generation=0)
        assert master.wait() == 65
        return master.text

    # Python's module queue, which psched has imported already.
    assert "here/queue.py' cannot be loaded beside the module 'queue'" in refusal("here/queue.py")
    assert "there/jobs.py' cannot be loaded beside" in refusal("here/jobs.py", "there/jobs.py")
    twice = service.start(
        *service.psched_command,
        *["run", "-r", "here/jobs.py", "-r", "here/../here/jobs.py", "recorder:Dispatch"],
    )
    assert twice.stop() == 0


def test_a_bare_name_that_nothing_required_has_is_refused(service):
    service.write("jobs.py", JOBS)

    master = service.start(
        *[*service.psched_command, "run", "-r", "jobs", "Dispatcher"],
        generation=0,
    )

    assert master.wait() == 65
    jobs = service.folder / "jobs.py"
    assert f"there is no 'Dispatcher' in jobs ({jobs}); write 'module:Dispatcher'" in master.text


def test_a_name_without_a_module_is_looked_up_in_that_of_the_dispatch(service):
    service.configure(dispatch=None)
    text = """
        import psched.application as a
        class Test(a.Base):
            def run(self):
                print("test", self.task.id)
        class Dispatch(a.Dispatch):
            routes = {"by name": "Test"}
        Dispatch.route({"added": "Test"})
        """
    service.write("lib/handlers.py", text)
    service.add("one", "by name")
    service.add("two", "added")

    master = service.start(*service.psched_command, "run", "-r", "lib/handlers", "Dispatch")

    for key in "one", "two":
        service.wait_for_finish(key)
        assert f"test {key}\n" in master.text
    assert master.stop() == 0


def test_a_handler_may_have_to_finish_its_task_itself(service):
    text = """
        import psched.application as a
        def returns(task): print("returned", task.attempt, flush=True)
        def finishes(task): task.finish()
        def patient(task): task.retry(600)
        def raises(task): raise ValueError("broken")
        class Dispatch(a.Dispatch):
            routes = {name: name for name in ("returns", "finishes", "patient", "raises")}
            routes["other"] = returns
        """
    service.write("jobs.py", text)
    service.configure(
        dispatch="jobs:Dispatch",
        on_return="retry",
        retry_wait=0,
        max_attempts=2,
        types={"other": {"on_return": "finish"}},
    )
    for type_ in "returns", "finishes", "patient", "raises", "other":
        service.add(type_, type_)
    service.add("own", "returns", on_return="finish")
    master = service.start()

    failed = service.wait_for_row("returns", lambda seen: seen.status == "failed")
    assert failed.reason == (
        "gave up after 2 attempts: returned without finish(), and on_return is retry"
    )
    service.wait_for_row("raises", lambda seen: "ValueError: broken" in (seen.reason or ""))
    for key in "finishes", "other", "own":
        service.wait_for_finish(key)
    assert service.row("patient").reason == "retry asked for by the handler"
    assert master.text.count("Traceback") == 2  # of what raises


def test_the_return_of_a_handler_means_what_it_has_decided(service):
    # A slot for each: what waits for one can be given back, and claimed again by another fence.
    service.configure(dispatch="jobs:Dispatch", concurrency=6)
    service.write(
        "jobs.py",
        """
        import os
        import psched
        from recorder import Recorder, Dispatch as RecorderDispatch

        class Decides(Recorder):
            def run(self):
                self.note("start", worker=self.worker)
                first = self.task.attempt == 1 and self.task.fence == 1
                how = "returned"
                try:
                    if self.task.key == "finishes-and-raises":
                        self.task.finish()
                        raise ValueError("too late")
                    if self.task.key == "retries-and-returns" and first:
                        self.task.retry(2)
                    if self.task.key == "releases-and-raises" and first:
                        self.task.release()
                        raise ValueError("no matter")
                    if self.task.key == "decides-twice":
                        self.task.finish()
                        self.task.retry()
                except ValueError:
                    raise
                except psched.AlreadyFinishedError as error:
                    how = type(error).__name__
                finally:
                    self.note("end", how=how)

        class Dispatch(RecorderDispatch):
            routes = {**RecorderDispatch.routes, "decides": Decides}
        """,
    )
    service.add("raises", data={"fail": 1}, retry_wait=3)
    service.add("returns")
    for key in "finishes-and-raises", "retries-and-returns", "releases-and-raises", "decides-twice":
        service.add(key, "decides", retry_wait=50)

    master = service.start()
    finished = {
        key: service.wait_for_finish(key)
        for key in (
            *("raises", "returns", "finishes-and-raises", "retries-and-returns"),
            *("releases-and-raises", "decides-twice"),
        )
    }
    assert master.stop() == 0

    def attempts(key):
        return [run.attempt for run in service.runs.runs(key)]

    assert (
        attempts("returns") == attempts("finishes-and-raises") == attempts("decides-twice") == [1]
    )
    assert service.runs.runs("decides-twice")[0].end == "AlreadyFinishedError"
    assert attempts("raises") == attempts("retries-and-returns") == [1, 2]
    # A release is no failure, and does not count as an attempt.
    assert attempts("releases-and-raises") == [1, 1]
    for key, wait in ("raises", 3), ("retries-and-returns", 2):
        first, second = service.runs.runs(key)
        assert second.started - first.last_sign > wait - 1  # the store counts whole seconds
    assert {row.row.fence for row in finished.values()} == {1, 2}
    assert re.search(r"WARNING worker 0 \[raises\.1000000000\] failed .* again in 3 s", master.text)
    assert "RecorderError: as it was told" in master.text


def test_a_type_that_nobody_routes_is_retried_loudly_until_somebody_does(service):
    service.configure(dispatch="jobs:Dispatch")
    service.write("jobs.py", "from recorder import Dispatch")
    service.add("orphan", "nobodys")
    master = service.start()

    master.wait_for_log(
        r"ERROR .*\[orphan\.1000000000\] no handler for the type 'nobodys'", count=2
    )
    wait_until(lambda: service.row("orphan").status == "waiting", what="the next attempt's turn")
    service.write(
        "jobs.py",
        """
        from recorder import Recorder, Dispatch as Before

        class Dispatch(Before):
            routes = {"nobodys": Recorder}
        """,
    )
    master.send(signal.SIGHUP)

    assert service.runs.wait("orphan", completed(1))[0].attempt > 2
    service.wait_for_finish("orphan")


def test_a_lazy_handler_that_cannot_be_imported_is_retried_loudly(service):
    service.configure(dispatch="jobs:Dispatch")
    service.write("jobs.py", JOBS)
    service.add("s1", "lazy-class")
    master = service.start()

    master.wait_for_log(r"ERROR .*\[s1\.1000000000\] there is no module 'lazily'")
    service.write("lazily.py", LAZILY)

    service.wait_for_finish("s1")


def test_a_handler_can_add_schedules_and_change_its_own_data(each_service):
    service = each_service
    service.configure(dispatch="jobs:Dispatch")
    service.write(
        "jobs.py",
        """
        from recorder import Recorder, Dispatch as Before

        class Parent(Recorder):
            def run(self):
                self.schedules.add("child", "recorder", data={"of": self.task.key}, next_time=1)
                self.task.update_data({"seen": self.task.data.get("seen", 0) + 1})
                print("exists:", self.schedules["child"].exists())
                super().run()

        class Dispatch(Before):
            routes = {**Before.routes, "parent": Parent}
        """,
    )
    service.add("parent", "parent")
    master = service.start()

    service.wait_for_finish("parent")
    service.wait_for_finish("child")

    assert service.row("child").data == {"of": "parent"}
    assert service.row("parent").data == {"seen": 1}
    assert "exists: True" in master.text
    assert master.stop() == 0
    assert "ERROR" not in master.text


def test_a_schedule_has_limits_of_its_own(service):
    service.configure(kill_interval=1, graceful_kill_limit=30)
    service.add("limited", data={"until": "gate"}, kill_timeout=5, retry_wait=60)
    service.add("unlimited", data={"until": "gate"})
    service.configure(processors=2)
    master = service.start()

    limited = service.runs.wait("limited", lambda runs: runs[0].end)
    service.wait_for_row("limited", lambda seen: seen.row.owner is None)
    service.open_gate("gate")
    service.wait_for_finish("unlimited")

    assert limited[0].end == "ProcessStopError: timeout"
    assert limited[0].last_sign - limited[0].started > 0.5
    assert service.row("limited").reason == "stopped at its time limit"
    assert service.row("limited").row.attempt == 1
    assert master.stop() == 0
    assert len(service.runs.runs("limited")) == 1
