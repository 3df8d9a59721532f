"""What tasks print is captured, whole and in order, whatever dies meanwhile."""

import logging
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import psched.output.collection
import psched.output.collector
from support.bench import CLOCK, Bench
from support.isolated import isolated
from support.process_trees import DAEMONS
from support.processes import kill
from support.waiting import PATIENCE, has_ended, wait_until


def sh(task):
    subprocess.run(["sh", "-c", task.data["script"]], check=False)


def mixed(_task):
    sys.stdout.write("1 no newline ")
    sys.stdout.flush()
    sys.stderr.write("2 stderr\n")
    os.write(1, b"3 a write\n")
    subprocess.run(["sh", "-c", "echo 4 stdout; echo 5 stderr >&2"], check=True)
    child = multiprocessing.get_context("fork").Process(target=os.write, args=(2, b"6 a child\n"))
    child.start()
    child.join()
    subprocess.run(["sh", "-c", "(sh -c '(echo 7 a child of a child)')"], check=True)
    sys.stdout.write("8 the rest")


def write(task):
    os.write(1, task.data["text"].encode())


def leave(task):
    os.write(1, task.data["text"].encode())
    os._exit(7)


def flood(task):
    line = b"x" * 99 + b"\n"
    for _ in range(task.data["lines"]):
        os.write(1, line)
    if until := task.data.get("until"):
        Path("flooded").touch()
        wait_until(lambda: Path(until).exists(), what="the file")


def wait_for_file(task):
    os.write(1, b"before\n")
    wait_until(lambda: Path(task.data["until"]).exists(), what="the file")
    os.write(1, b"after\n")


def silent(_task):
    pass


def logs(task):
    sys.stdout.write("printed\n")
    logging.getLogger("a.task").warning("logged")
    raise ValueError(task.data["why"])


def leak_descriptors(_task):
    with suppress(OSError):
        while True:
            os.dup(0)


HANDLERS = {
    "sh": sh,
    "mixed": mixed,
    "write": write,
    "leave": leave,
    "flood": flood,
    "wait": wait_for_file,
    "silent": silent,
    "logs": logs,
    "leak": leak_descriptors,
}

REUSED = {"max_tasks_per_child": 1000}


def make(**settings):
    """A worker, whose service's output is a file."""
    service = os.open("service", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(service, 1)
    return Bench(HANDLERS, log_file="log", **{"output": "both", **settings})


def have_nobody_give_up():
    """From now on, who waits for what does not come hangs, and is not merely late."""
    for module, name in (
        (psched.output.collection, "_PATIENCE"),
        (psched.output.collection, "_LONGEST_PATIENCE"),
        (psched.output.collection, "_LAST_WORDS"),
        (psched.output.collector, "_LAST_WORDS"),
    ):
        assert hasattr(module, name)
        setattr(module, name, 1000.0)


def told(task):
    """The output of a task that has ended, as JSON."""
    return [task.output.tail.decode(errors="replace"), task.output.dropped]


def run(bench, type_, key=None, **data):
    task = bench.start(type_, key, **data)
    return [bench.finish(task), *told(task)]


def service():
    """The lines that the service has written, without their times."""
    lines = Path("service").read_text().splitlines()
    return [line.partition(" ")[2] for line in lines]


# --- what is captured ----------------------------------------------------------------


def all_sources(settings):
    bench = make(**settings)
    _, text, dropped = run(bench, "mixed")
    wait_until(lambda: len(service()) == 7, what="all lines")
    return text.split("\n"), dropped, service()


@pytest.mark.parametrize("settings", [{}, REUSED])
def test_output_of_all_processes_of_a_task_is_captured_in_order(settings):
    lines = [
        "1 no newline 2 stderr",
        "3 a write",
        "4 stdout",
        "5 stderr",
        "6 a child",
        "7 a child of a child",
        "8 the rest",
    ]
    expected = [lines, 0, [f"mixed: {line}" for line in lines]]
    assert isolated(all_sources, settings) == expected


def died_at_once():
    bench = make()
    return run(bench, "leave", text="last words")


def test_what_was_written_right_before_a_process_exits_is_kept():
    outcome, *output = isolated(died_at_once)
    assert "exited with status 7" in outcome
    assert output == ["last words", 0]


def logged():
    bench = make()
    _, text, _ = run(bench, "logs", why="a reason")
    log = Path("log").read_text()
    return text, log, service()


def test_captured_output_contains_the_log_lines_of_the_task():
    text, log, forwarded = isolated(logged)
    printed, *copies = text.splitlines()
    assert printed == "printed"
    assert "logged" in copies[0]
    assert any("a reason" in line for line in copies)
    # They are in the log, so they are not forwarded.
    assert "a reason" in log
    assert forwarded == ["logs: printed"]


def separated():
    bench = make(output="both")
    # RFC 7464: each JSON text begins with this character.
    told = run(bench, "write", text="\x1e{}\n\x1e[]\npart\x1e1\n")
    return told, [line.partition(" ")[2] for line in Path("service").read_text().split("\n")[:3]]


def test_a_record_separator_is_no_mark():
    [_, text, _], forwarded = isolated(separated)
    assert text == "\x1e{}\n\x1e[]\npart\x1e1\n"
    assert forwarded == ["write: \x1e{}", "write: \x1e[]", "write: part\x1e1"]


def limited():
    bench = make(output_limit=1000)
    return run(bench, "flood", lines=5000), run(bench, "write", text="short")


def test_the_last_bytes_are_kept_and_the_others_counted():
    (_, text, dropped), (_, short, none) = isolated(limited)
    assert text == ("x" * 99 + "\n") * 10
    assert dropped == 5000 * 100 - 1000
    assert (short, none) == ("short", 0)


def with_daemons():
    # They would live for longer than the test's patience.
    return run(make(), "sh", script=f"{DAEMONS}; echo started")[1]


def test_daemons_that_hold_the_pipe_die_with_the_task():
    assert isolated(with_daemons) == "started\n"


PLACES = ("both", "raw", "none", "history", "service")


def every_place():
    bench = make(
        types={place: {"output": place} for place in PLACES},
        **REUSED,
    )
    # The types run the same handler, by turns, in the same process.
    bench.pool.prepare()
    found = []
    pids = set()
    for number in range(15):
        place = PLACES[number % 5]
        task = bench.start(place, f"key{number}", text=f"{place} {number}\n")
        pids.add(task.runner.pid)
        bench.finish(task)
        found.append(told(task))
    bench.output.stop()
    lines = [line.partition(" key")[::2] for line in Path("service").read_text().splitlines()]
    return len(pids), found, sorted(key or rest for rest, key in lines)


for place in PLACES:
    HANDLERS[place] = write


def test_each_type_has_its_place_also_in_a_reused_process():
    processes, found, forwarded = isolated(every_place)
    assert processes == 1
    expected, lines = [], []
    for number in range(15):
        place = PLACES[number % 5]
        text = f"{place} {number}"
        is_kept = place in ("both", "history")
        # Bytes that are only forwarded count as dropped.
        dropped = len(text) + 1 if place == "service" else 0
        expected.append([f"{text}\n" if is_kept else "", dropped])
        if place in ("both", "service"):
            lines.append(f"{number}: {text}")
        if place == "raw":
            lines.append(text)
    assert found == expected
    assert forwarded == sorted(lines)


def by_turns(settings):
    bench = make(concurrency=8, **settings)
    wrong = []
    waiting = {}
    for number in range(300):
        key = f"k{number}"
        task = (
            bench.start("silent", key)
            if number % 3 == 0
            else bench.start("write", key, text=f"{key} " * (1 + number % 7 * 500))
        )
        waiting[key] = task
        while len(waiting) == 8 or (number == 299 and waiting):
            bench.turn()
            for ended in [each for each in waiting.values() if each.empty]:
                own = waiting.pop(ended.row.key).row.key
                bench.tasks.remove(own)
                count = int(own[1:])
                expected = "" if count % 3 == 0 else f"{own} " * (1 + count % 7 * 500)
                if told(ended) != [expected, 0]:
                    wrong.append(
                        [
                            own,
                            told(ended)[0][:50],
                            len(told(ended)[0]),
                            len(expected),
                            told(ended)[1],
                            str(ended.conclusion),
                        ]
                    )
    return wrong


@pytest.mark.parametrize("settings", [pytest.param({}, marks=pytest.mark.extended), REUSED])
def test_each_attempt_has_exactly_its_own_output(settings):
    assert isolated(by_turns, settings) == []


def masked():
    secrets = ["hunter2-and-more", "hunter2", "two\nlines", "abc", "nter2-and-morX"]
    bench = make(secrets=secrets, output_limit=100)
    split = "echo -n hunt; sleep 0.1; echo er2; echo hunter2-and-more; echo 'two\nlines'; echo abc"
    first = run(bench, "sh", "split", script=split)
    held = run(bench, "write", "held", text="ends with hunt")
    # The tail would begin within the secret; so would a piece of a long line.
    tail = run(bench, "write", "tail", text="hunter2" + "." * 98)
    wide = run(bench, "write", "wide", text="." * 2897 + "hunter2")
    return first[1], held[1], tail[1:], wide[1], service()


def test_secrets_are_masked_also_if_they_are_split():
    first, held, tail, wide, forwarded = isolated(masked)
    assert first == "***\n***\n***\nabc\n"  # a short one would be found everywhere
    assert held == "ends with hunt"
    assert tail == ["**" + "." * 98, 1]
    assert wide == "." * 97 + "***"
    text = "\n".join(forwarded)
    assert "hunter" not in text
    assert "lines" not in text
    assert "split: abc" in forwarded


# --- what dies, or stands still ------------------------------------------------------


def killed_collector(how):
    bench = make()
    first = bench.collector
    task = bench.start("wait", until="go")
    bench.until(lambda: "wait: before" in service())
    silent_task = bench.start("silent")
    kill(first, signal.Signals[how])
    Path("go").touch()
    outcome = bench.finish(task)
    log = Path("log").read_text()
    again = run(bench, "write", text="next")
    # The first one has lived for less than a second, so the next is not started at once.
    bench.until(lambda: first not in bench.collectors != [])
    return {
        "outcome": outcome,
        "output": told(task),
        "silent": [bench.finish(silent_task), *told(silent_task)],
        "again": again,
        "log": log.count("the collector of output died"),
        "gone": has_ended(first),
    }


@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
def test_the_loss_of_a_collector_is_noted_and_changes_no_outcome(how):
    found = isolated(killed_collector, how)
    # It had read the first line; what was in the pipe is not lost.
    assert found.pop("output") == ["after\n", None]
    assert found == {
        "outcome": "Finish()",
        "silent": ["Finish()", "", 0],
        "again": ["Finish()", "next", 0],
        "log": 1,
        "gone": True,
    }


def asked_and_dead():
    bench = make(**REUSED)
    collector = bench.collector
    kill(collector, signal.SIGSTOP)
    task = bench.start("write", "first", text="first")
    bench.until(lambda: task.awaits_output)
    kill(collector, signal.SIGKILL)
    bench.finish(task)
    second = run(bench, "write", "second", text="second")
    return told(task), second


def test_output_for_which_a_dead_collector_was_asked_is_not_that_of_the_next_task():
    first, second = isolated(asked_and_dead)
    assert first[0] == "first"
    assert second == ["Finish()", "second", 0]


def stands_still_while_runners_come_and_go():
    bench = make()
    patience = psched.output.collection._PATIENCE
    have_nobody_give_up()
    kill(bench.collector, signal.SIGSTOP)
    for number in range(700):
        run(bench, "silent", f"k{number}")
    psched.output.collection._PATIENCE = patience
    return run(bench, "write", text="works")


@pytest.mark.extended
def test_a_stopped_collector_does_not_stop_its_worker():
    # 700 processes, one after the other, take long on a slow machine.
    again = isolated(stands_still_while_runners_come_and_go, timeout=15 * PATIENCE)
    assert again[:2] == ["Finish()", "works"]


def stands_still_while_a_task_prints():
    bench = make()
    kill(bench.collector, signal.SIGSTOP)
    return run(bench, "flood", lines=5000)


def test_a_stopped_collector_does_not_stop_a_task_that_prints():
    outcome, text, dropped = isolated(stands_still_while_a_task_prints)
    assert outcome == "Finish()"
    assert len(text) == 65536
    assert dropped == 5000 * 100 - 65536


def dies_whenever_it_starts():
    began = CLOCK.monotonic()
    bench = make()
    task = bench.start("flood", lines=50_000)
    killed = set()
    while len(killed) < 4:
        for pid in bench.collectors:
            kill(pid)
            killed.add(pid)
        bench.turn(0.01)
    return CLOCK.monotonic() - began, bench.finish(task), task.output.dropped


def test_a_collector_that_always_dies_is_not_restarted_all_the_time():
    seconds, outcome, dropped = isolated(dies_whenever_it_starts)
    assert seconds > 2.9  # there is a second at least between two of the four starts
    assert [outcome, dropped] == ["Finish()", None]


def signalled():
    bench = make()
    collector = bench.collector
    harmless = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
    for number in harmless:
        kill(collector, number)
    text = run(bench, "write", text="works")
    return bench.collector == collector, text[1]


def test_signals_to_all_processes_do_not_end_the_collector():
    assert isolated(signalled) == [True, "works"]


def spared():
    bench = make()
    collector = bench.collector
    kill(bench.server)
    bench.until(lambda: has_ended(bench.server) or bench.pool.start())
    found = [run(bench, "sh", f"k{number}", script=f"{DAEMONS}; echo a")[1] for number in range(5)]
    return found, bench.collector == collector


def test_the_collector_is_no_leftover_of_a_task():
    assert isolated(spared) == [["a\n"] * 5, True]


def ended_with_its_worker():
    have_nobody_give_up()
    bench = make()
    pid = bench.collector
    bench.close()
    return has_ended(pid)


def test_the_collector_ends_with_its_worker():
    assert isolated(ended_with_its_worker)


def left_descriptors():
    bench = make(**REUSED)

    def count(pid):
        return len([*Path(f"/proc/{pid}/fd").iterdir()])

    def churn(start):
        for number in range(40):
            run(bench, "leave" if number % 2 else "write", f"k{start}.{number}", text="x")
        return [count(os.getpid()), count(bench.collector), count(bench.server)]

    before = churn(0)
    return before, churn(1)


def test_no_descriptor_is_left_open():
    before, after = isolated(left_descriptors)
    # Up to 16 pipes are closed together.
    assert all(abs(one - other) <= 32 for one, other in zip(before, after, strict=True))
    assert max(after) < 90


def without_descriptors():
    bench = make(concurrency=40)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len([*Path("/proc/self/fd").iterdir()]) + 6, hard))
    tasks = []
    for number in range(20):
        with suppress(OSError):
            tasks.append(bench.start("write", f"k{number}", text="works"))
    outcomes = {bench.finish(task) for task in tasks}
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return len(tasks) > 0, sorted(outcomes), run(bench, "write", text="again")


def test_without_descriptors_tasks_run_and_print_to_the_service():
    started, outcomes, again = isolated(without_descriptors)
    assert started
    assert outcomes == ["Finish()"]
    assert again == ["Finish()", "again", 0]


def leaked():
    bench = make(types={"raw": {"output": "raw"}}, **REUSED)
    first = bench.start("leak")
    outcome = bench.finish(first)
    return outcome, run(bench, "raw", "second", text="x")[0]


def test_a_task_that_leaves_no_descriptor_does_not_fail_the_next():
    assert isolated(leaked)[1] == "Finish()"


# --- where the service's output goes -------------------------------------------------


def reader_stands_still():
    reader, writer = os.pipe()
    os.dup2(writer, 1)
    os.close(writer)
    have_nobody_give_up()
    bench = Bench(HANDLERS, log_file="log", output="both", concurrency=2)
    pid = bench.collector
    flooding = bench.start("flood", lines=100_000, until="others")
    bench.until(lambda: Path("flooded").exists())
    others = [run(bench, "write", f"k{number}", text="x")[0] for number in range(3)]
    Path("others").touch()
    dropped = bench.finish(flooding) and flooding.output.dropped
    others_see_no_change = os.get_blocking(1)
    # Now somebody reads, and is told of what is missing.
    os.set_blocking(reader, False)
    read = bytearray()

    def read_all():
        with suppress(BlockingIOError):
            while chunk := os.read(reader, 1 << 20):
                read.extend(chunk)
        return len(read) > 2**20

    bench.until(read_all)
    last = run(bench, "write", "last", text="last words")
    # At its end, the collector writes all that it still has, and nobody reads that meanwhile.
    bench.until(lambda: read_all() and read.endswith(b"last words\n"))
    bench.close()
    lines = read.decode().splitlines()
    same = bench.output is not None and has_ended(pid)
    return {
        "others": others,
        "dropped": dropped,
        "blocking": others_see_no_change,
        "notes": sum("lines of output are left out here" in line for line in lines) > 0,
        "last": lines[-1].partition(" ")[2],
        "whole": last,
        "same": same,
    }


def test_a_reader_that_stands_still_stops_nobody():
    # A flood of 10 MB takes long on a slow machine.
    found = isolated(reader_stands_still, timeout=3 * PATIENCE)
    assert found == {
        "others": ["Finish()"] * 3,
        "dropped": 100_000 * 100 - 65536,
        "blocking": True,
        "notes": True,
        "last": "last: last words",
        "whole": ["Finish()", "last words", 0],
        "same": True,
    }


def full_disk():
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, 1)
    bench = Bench(HANDLERS, log_file="log", output="both")
    collector = bench.collector
    found = run(bench, "flood", lines=20_000)
    return found[0], found[2], bench.collector == collector


def test_a_full_disk_stops_nobody():
    assert isolated(full_disk) == ["Finish()", 20_000 * 100 - 65536, True]
