"""The processes that import and ask triggers of the users' own, for one worker.

A trigger may hang, crash, or use up its memory, so the worker does not ask it. A runner that is
used for nothing else judges the row (`remote_policy`), while the worker goes on; it is used
again for the next question. It is killed if it does not answer in time, or answers nonsense. Then
the row is judged once more, in a fresh process, because another trigger may have spoilt the first.
If that fails too, the row is quarantined. Both attempts are this worker's, under one lease, so no
row kills processes in one worker after another.

One such process is enough as long as it answers at once. If it has not answered after `MOMENT`, the
next question is sent to another process, so that a trigger that hangs delays no other. Only so many
slow questions may be open, in all and of one class: further rows are put off.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import Any

from psched.base.clock import Clock
from psched.config import Config
from psched.core.definition import parse_row
from psched.core.model import QUARANTINED, WAITING, Decision, Row, Settlement, Token
from psched.core.policy import Run, after_claim, after_run, postpone
from psched.core.remote_policy import PolicyRequest, parse_answer
from psched.runner.messages import FROM_TRIGGER_HELPER
from psched.runner.runner_child import RunnerChild
from psched.runner.runner_pool import RunnerPool
from psched.triggers.custom import (
    DEADLINE,
    AskElsewhereError,
    class_name,
    loading_by,
    refuse_to_ask,
)
from psched.triggers.trigger import is_custom
from psched.worker.task_table import TaskTable

_log = logging.getLogger("psched.worker")

MOMENT = 0.05
"""Seconds after which a question is slow: nothing waits for its answer any more."""

_MOST_SLOW = 16
"""How many slow questions may be open at once; each keeps a process busy."""

_MOST_SLOW_OF_ONE = 4
"""How many of them may be for triggers of the same class."""

_MOST_KILLS = 2
"""How many processes may be killed for one row before it is given up."""

_FORK_PAUSE = 1.0
"""Seconds until the next try when the system had no process to give."""


@dataclass(slots=True, eq=False)
class Question:
    """What a row's trigger is asked.

    Attributes:
        case: what is to be judged.
        name: the trigger's class.
        since: when the row began to wait, seconds of the monotonic clock.
        sent: when the question was sent to a process, seconds of the monotonic clock.
        helper: the process that is asked; None: not yet, or no longer.
        fresh: the process must not have asked another trigger before.
        kills: how many processes the question has cost.
        answer: the verdict; None: there is none yet.
    """

    case: PolicyRequest
    name: str
    since: float
    sent: float = 0.0
    helper: RunnerChild | None = None
    fresh: bool = False
    kills: int = 0
    answer: Run | Settlement | None = None


class TriggerHelpers:
    """The worker's side of these processes; owns the questions.

    Args:
        tasks: has a process forked, after the running tasks were guarded.
        pool: the processes.
        settings: the defaults of what a row leaves open.
        clock: tells which questions are slow.
    """

    def __init__(self, tasks: TaskTable, pool: RunnerPool, settings: Config, clock: Clock) -> None:
        self._tasks = tasks
        self._pool = pool
        self._settings = settings
        self._clock = clock
        self._idle: list[RunnerChild] = []
        self._asked: list[Question] = []
        self._queue: list[Question] = []
        self._fork_at = 0.0
        self._received = 0.0
        self._ends: dict[tuple[str, Token, int], Question] = {}

    def open(self, row: Row, now: float) -> Run | Settlement | Question:
        """What to do with a row that has just been claimed, see `policy.after_claim`.

        Returns:
            A question, if its trigger has to be asked: a later `receive` sets its ``answer``.
        """
        # A question is needed even if the row could run at once, because the trigger is asked after
        # the run.
        if row.status == WAITING and row.cron and is_custom(row.cron) and self._is_full(row.cron):
            return postpone(row, ceil(DEADLINE))
        try:
            with loading_by(refuse_to_ask):
                return after_claim(row, self._settings, now)
        except AskElsewhereError:
            return self._ask(PolicyRequest(row, now))

    def conclude(
        self, leased: Row, current: Row, decision: Decision, settings: Config, now: float
    ) -> Settlement | None:
        """The settlement of a lease after a run, see `policy.after_run`; None: not known yet.

        Call this again until the settlement is known, and then `forget`. For each version of a row,
        the ``now`` of the first call counts.
        """
        key = (leased.key, leased.token, current.version)
        if key not in self._ends:
            try:
                with loading_by(refuse_to_ask):
                    return after_run(leased, current, decision, settings, now)
            except AskElsewhereError:
                self._ends[key] = self._ask(PolicyRequest(current, now, leased, decision))
        answer = self._ends[key].answer
        return answer if isinstance(answer, Settlement) else None

    def awaits(self, row: Row) -> bool:
        """Whether a trigger is being asked how the lease of a row ends."""
        token = row.token
        return any(
            question.answer is None
            for (key, of, _), question in self._ends.items()
            if key == row.key and of == token
        )

    def forget(self, row: Row) -> None:
        """Forget a row whose lease has ended."""
        for end in [end for end in self._ends if end[:2] == (row.key, row.token)]:
            self.drop(self._ends.pop(end))

    def drop(self, question: Question) -> None:
        """Drop a question whose answer is not needed any more."""
        if question in self._queue:
            self._queue.remove(question)
        if question.helper is not None and question in self._asked:
            self._asked.remove(question)
            self._pool.kill(question.helper)

    def is_reserved(self, question: Question) -> bool:
        """Whether to keep room for a row's task, because its answer is there or is due at once."""
        young = self._clock.monotonic() < question.since + MOMENT
        return young or question.answer is not None

    def is_stuck(self, question: Question) -> bool:
        """Whether a question waits because no process can be forked."""
        unasked = question in self._queue and not question.kills and question.helper is None
        return unasked and self._clock.monotonic() < self._fork_at

    def receive(self) -> None:
        """Receive the answers, kill the processes that do not answer, and send what waits."""
        self._received = self._clock.monotonic()
        for helper in [*self._idle]:
            # A process without a question must not speak: what arrives is garbage, or the end of
            # the stream.
            if helper.exit is not None or helper.link.receive() or helper.link.closed:
                self._idle.remove(helper)
                self._pool.kill(helper)
        for question in [*self._asked]:
            self._receive_answer(question)
        self._send()

    @property
    def wakes(self) -> float:
        """When `receive` is to be called again, seconds of the monotonic clock."""
        moments = [question.sent + DEADLINE for question in self._asked]
        if self._queue:
            moments += [self._fork_at, *(question.sent + MOMENT for question in self._asked)]
        # Room is kept for a task only for `MOMENT`.
        moments += [question.since + MOMENT for question in (*self._asked, *self._queue)]
        # Times that had passed at the last call have been handled.
        return min((moment for moment in moments if moment > self._received), default=inf)

    def dismiss(self) -> None:
        """Let the process that waits for a question exit."""
        for helper in self._idle:
            helper.link.close()
        self._idle.clear()

    def _ask(self, case: PolicyRequest) -> Question:
        question = Question(case, class_name(case.row.cron or ""), self._clock.monotonic())
        self._queue.append(question)
        self._send()
        return question

    def _receive_answer(self, question: Question) -> None:
        helper = question.helper
        if helper is None:
            return
        helper.link.flush()
        messages = helper.last_words if helper.exit is not None else helper.link.receive()
        problem = None
        if messages:
            problem = self._accept(question, helper, messages)
        elif helper.exit is not None:
            problem = f"its process {helper.exit}"
        elif helper.link.fault is not None:
            problem = f"its process has sent {helper.link.fault}"
        elif helper.link.closed:
            problem = "its process has ended"
        elif self._clock.monotonic() >= question.sent + DEADLINE:
            problem = f"it has not answered within {DEADLINE:g} s"
        if problem is not None:
            self._failed(question, helper, problem)

    def _accept(
        self, question: Question, helper: RunnerChild, messages: Sequence[Mapping[str, Any]]
    ) -> str | None:
        """Accept an answer; what is wrong with it, if something is."""
        message = messages[0]
        if len(messages) > 1:
            return "its process has sent what it was not asked for"
        if "failed" in message:
            return f"it raised {message['failed'][:200]!r}"
        try:
            found = parse_answer(question.case, message)
        except ValueError:
            return "its process has sent what it was not asked for"
        self._asked.remove(question)
        if found is None:
            row = question.case.row
            with loading_by(refuse_to_ask):
                definition = parse_row(row, self._settings)
            question.answer = Run(definition, row.next_time or 0)
        elif found.status == QUARANTINED and not question.fresh:
            # Another trigger may have spoilt the process, so a fresh one is asked next.
            question.fresh = True
            self._queue.append(question)
        else:
            question.answer = found
        # Only one process is kept waiting for questions.
        ends = message["last"] or helper.link.closed or self._idle
        if not ends and self._pool.clear(helper):
            self._idle.append(helper)
        else:
            self._pool.kill(helper)
        return None

    def _failed(self, question: Question, helper: RunnerChild, problem: str) -> None:
        self._pool.kill(helper)
        self._asked.remove(question)
        question.helper = None
        question.kills, question.fresh = question.kills + 1, True
        row = question.case.row
        if question.kills < _MOST_KILLS:
            text = "%s: killing the process that asks its trigger %s: %s"
            _log.warning(text, row.key, question.name, problem)
            self._queue.append(question)
        else:
            why = f"cron: {question.name} has failed to answer {question.kills} times: {problem}"
            question.answer = question.case.quarantine(why)

    def _send(self) -> None:
        """Send the waiting questions; each waits until the one before is answered or slow."""
        while self._queue and self._clock.monotonic() >= self._fork_at:
            if any(not self._is_slow(question) for question in self._asked):
                return
            question = min(self._queue, key=lambda each: each.kills)
            question.fresh = question.fresh or not self._idle
            try:
                helper = self._fork() if question.fresh else self._idle.pop()
            except OSError:
                self._fork_at = self._clock.monotonic() + _FORK_PAUSE
                return
            self._queue.remove(question)
            question.helper, question.sent = helper, self._clock.monotonic()
            self._asked.append(question)
            helper.link.send({"judge": question.case.message()})

    def _fork(self) -> RunnerChild:
        self._tasks.prepare(unused=True)
        helper = self._pool.acquire()
        helper.link.expects = FROM_TRIGGER_HELPER
        return helper

    def _is_full(self, trigger: str) -> bool:
        """Whether a further row with this trigger must be put off."""
        slow = [question for question in self._asked if self._is_slow(question)]
        name = class_name(trigger)
        same = sum(question.name == name for question in slow)
        return len(slow) >= _MOST_SLOW or same >= _MOST_SLOW_OF_ONE

    def _is_slow(self, question: Question) -> bool:
        return self._clock.monotonic() >= question.sent + MOMENT
