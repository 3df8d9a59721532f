"""The helper processes that import and ask triggers that users have written, for one worker.

Such a trigger may hang, crash, or use up the memory, so the worker does not call it. A helper
process, which is a runner that never runs tasks, judges the row (`remote_policy`). Meanwhile the
worker continues. The helper is used again for the next question. The worker kills a helper that
does not answer in time, or sends an invalid answer. Then a new process judges the row again,
because another trigger may have spoilt the first process. If the second attempt fails, the row is
quarantined. Both attempts are made by one worker under one lease, so a row cannot kill processes of
one worker after another.

One helper is enough while helpers answer fast. If a helper has not answered after `MOMENT`, the
next question is sent to another helper, so that a trigger that hangs does not delay the others. The
number of slow questions is limited, in total and for each trigger class. At the limit, further rows
are postponed.
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
"""Seconds after which a question counts as slow: other questions no longer wait for its answer."""

_MOST_SLOW = 16
"""The most slow questions that may be open at once, because each keeps a process busy."""

_MOST_SLOW_OF_ONE = 4
"""The most slow questions that may be open at once for triggers of one class."""

_MOST_KILLS = 2
"""The number of processes killed for one question after which its row is quarantined."""

_FORK_PAUSE = 1.0
"""Seconds until the next try after a helper process could not be forked."""


@dataclass(slots=True, eq=False)
class Question:
    """A question to the trigger of a row.

    Attributes:
        case: the row to be judged, and the end of its run if it was run.
        name: the name of the trigger's class.
        since: when the row began to wait, seconds of the monotonic clock.
        sent: when the question was last sent to a helper, seconds of the monotonic clock; 0 if it
            was never sent.
        helper: the helper process to which the question was last sent; None if it was never sent,
            or if that helper has failed.
        fresh: whether the helper must be a new process, which has asked no other trigger.
        kills: how many helpers were killed because they did not answer this question.
        answer: the verdict; None until it is known.
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
    """Sends questions to helper processes, and receives the answers; owns the questions.

    Args:
        tasks: guards the running tasks, then has a process forked.
        pool: creates and kills the processes.
        settings: the defaults for settings that a row does not contain.
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
        """Judge a row that has just been claimed; see `policy.after_claim`.

        Returns:
            What to run; or a settlement, if there is nothing to run; or a question, if the row's
            trigger must be asked. A later `receive` sets the ``answer`` of the question.
        """
        # The row is postponed even if it could run at once, because its trigger would be asked
        # after the run.
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
        """The settlement of a lease after a run; None if it is not known yet.

        Call this again until the settlement is known. Call `forget` when the lease has ended. If a
        trigger must be asked, the ``now`` of the first call for a version of the row is used.

        See `policy.after_run`.
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
        """Drop the questions about the end of a row's lease, because that lease has ended."""
        for end in [end for end in self._ends if end[:2] == (row.key, row.token)]:
            self.drop(self._ends.pop(end))

    def drop(self, question: Question) -> None:
        """Drop a question whose answer is not needed any more; kill a helper that works on it."""
        if question in self._queue:
            self._queue.remove(question)
        if question.helper is not None and question in self._asked:
            self._asked.remove(question)
            self._pool.kill(question.helper)

    def is_reserved(self, question: Question) -> bool:
        """Whether to keep room for a row's task: its question is answered, or is not yet slow."""
        young = self._clock.monotonic() < question.since + MOMENT
        return young or question.answer is not None

    def is_stuck(self, question: Question) -> bool:
        """Whether a question waits because no process can be forked."""
        unasked = question in self._queue and not question.kills and question.helper is None
        return unasked and self._clock.monotonic() < self._fork_at

    def receive(self) -> None:
        """Receive answers, kill the helpers that do not answer, and send waiting questions."""
        self._received = self._clock.monotonic()
        for helper in [*self._idle]:
            # A helper without a question must not send anything, so it is killed if it has sent a
            # message or has closed its link.
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
        # The worker must wake after `MOMENT`, because then no room is kept for the task any more.
        moments += [question.since + MOMENT for question in (*self._asked, *self._queue)]
        # Times before the last `receive` are ignored, because that call has handled them.
        return min((moment for moment in moments if moment > self._received), default=inf)

    def dismiss(self) -> None:
        """Close the link of the idle helper process, so that it exits."""
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
        """Accept an answer; return what is wrong with the answer, or None if it is valid."""
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
            # A new process is asked next, because another trigger may have spoilt this one.
            question.fresh = True
            self._queue.append(question)
        else:
            question.answer = found
        # The helper is killed if another is idle already, because one idle helper is enough.
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
        """Send waiting questions, each once the previous question is answered or slow."""
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
        """Whether a row with this trigger must be postponed: too many slow questions are open."""
        slow = [question for question in self._asked if self._is_slow(question)]
        name = class_name(trigger)
        same = sum(question.name == name for question in slow)
        return len(slow) >= _MOST_SLOW or same >= _MOST_SLOW_OF_ONE

    def _is_slow(self, question: Question) -> bool:
        return self._clock.monotonic() >= question.sent + MOMENT
