"""The helper processes of one worker, which import and call triggers that users have written.

A user's trigger can hang, crash, or use up the memory, so the worker does not call it. Instead the
worker sends a question to a helper process: what is to be done with this row? The helper, which is
a runner that never runs tasks, calls the trigger and answers (see `remote_policy`). Meanwhile the
worker continues. After a valid answer, the worker uses the helper for the next question.

If a helper does not answer in time, or sends an invalid answer, the worker kills it, and sends the
question to a new process, because another trigger might have spoilt the first process. If the
second process fails, the worker quarantines the row. Both attempts are made by one worker under one
lease, so a row cannot make one worker after another lose processes.

One helper is enough while helpers answer fast. If a helper has not answered after `MOMENT` seconds,
the next question is sent to another helper, so that a trigger that hangs does not delay other rows.
The number of such slow questions is limited, in total and for each trigger class. While the limit
is reached, further rows that need a helper are postponed.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import Any

from psched.base.loader import loading_by
from psched.config import Config
from psched.core.definition import parse_row
from psched.core.model import QUARANTINED, WAITING, Decision, Row, Settlement, Token
from psched.core.operations.pauses import PastPause
from psched.core.policy import Run, after_claim, after_run, postpone
from psched.core.remote_policy import PolicyRequest, parse_answer
from psched.runner.messages import FROM_TRIGGER_HELPER
from psched.runner.runner_pool import RunnerChild
from psched.triggers.custom import DEADLINE, AskElsewhereError, class_name, refuse_to_ask
from psched.worker.context import Context
from psched.worker.task_table import TaskTable

_log = logging.getLogger("psched.worker")

MOMENT = 0.05
"""Seconds after which an unanswered question counts as slow, so that the next question is sent
before its answer arrives."""

_MOST_SLOW = 16
"""The maximum number of slow questions at one time. It is limited, because each slow question
occupies a process."""

_MOST_SLOW_OF_ONE = 4
"""The maximum number of slow questions at one time if all are about the same trigger class."""

_MOST_KILLS = 2
"""If this many helpers were killed because of one question, its row is quarantined."""

_FORK_PAUSE = 1.0
"""Seconds until the next try after a helper process could not be forked."""


@dataclass(slots=True, eq=False)
class Question:
    """A question to a helper: what is to be done with a row whose trigger a user has written?

    Attributes:
        case: the row, and how its run ended if it was run.
        name: the name of the trigger's class.
        since: when the question was created, seconds of the monotonic clock.
        sent: when the question was last sent to a helper, seconds of the monotonic clock; 0 if it
            was never sent.
        helper: the helper process to which the question was last sent; None if it was never sent,
            or if that helper has failed.
        fresh: whether the helper must be a new process, which has called no other trigger.
        kills: how many helpers were killed because they gave no valid answer to this question.
        answer: what to run, or how to settle the lease; None while no answer has been accepted.
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

    Attributes:
        ends: the questions how to settle leases after a run, by the row's key, the lease's token
            and the version of the row; read only.
        is_busy: whether there may be a helper, or a question, so that `receive` is to be called.
    """

    def __init__(self, context: Context, tasks: TaskTable) -> None:
        self._tasks = tasks
        self._pool = context.pool
        self._settings = context.settings
        self._clock = context.clock
        self._idle: list[RunnerChild] = []
        self._asked: list[Question] = []
        self._queue: list[Question] = []
        self._fork_at = 0.0
        self._received = 0.0
        self.ends: dict[tuple[str, Token, int], Question] = {}
        self.is_busy = False

    def open(
        self, row: Row, now: float, pauses: tuple[PastPause, ...] = ()
    ) -> Run | Settlement | Question:
        """Decide what to do with a claimed row that has a user's trigger; see `after_claim`.

        The result is a question if the trigger must be called in a helper. A later `receive` sets
        the question's ``answer``.
        """
        # If there are too many slow questions, the row is postponed, even if it could run now,
        # because its trigger must be called after the run.
        if row.status == WAITING and self._is_full(row.cron or ""):
            return postpone(row, ceil(DEADLINE))
        try:
            with loading_by(refuse_to_ask):
                return after_claim(row, self._settings, now, pauses)
        except AskElsewhereError:
            return self._ask(PolicyRequest(row, now, pauses=pauses))

    def conclude(
        self, leased: Row, current: Row, decision: Decision, settings: Config, now: float
    ) -> Settlement | None:
        """The settlement of a lease after a run; None while a helper has not answered yet.

        Call this again until it returns a settlement. Call `forget` when the lease has ended. If a
        trigger must be called, the settlement is computed with the ``now`` of the first call for
        this version of the row. `policy.after_run` describes the arguments.
        """
        key = (leased.key, leased.token, current.version)
        if key not in self.ends:
            try:
                with loading_by(refuse_to_ask):
                    return after_run(leased, current, decision, settings, now)
            except AskElsewhereError:
                self.ends[key] = self._ask(PolicyRequest(current, now, leased, decision))
        answer = self.ends[key].answer
        return answer if isinstance(answer, Settlement) else None

    def awaits(self, row: Row) -> bool:
        """Whether the settlement after the run of a row needs an answer that has not arrived."""
        token = row.token
        return any(
            question.answer is None
            for (key, of, _), question in self.ends.items()
            if key == row.key and of == token
        )

    def forget(self, row: Row) -> None:
        """Drop the questions about the settlement of a row's lease, because the lease has ended."""
        for end in [end for end in self.ends if end[:2] == (row.key, row.token)]:
            self.drop(self.ends.pop(end))

    def drop(self, question: Question) -> None:
        """Drop a question whose answer is not needed any more; kill the helper that works on it."""
        if question in self._queue:
            self._queue.remove(question)
        if question.helper is not None and question in self._asked:
            self._asked.remove(question)
            self._pool.kill(question.helper)

    def is_reserved(self, question: Question) -> bool:
        """Whether `Claimer` must leave room for the task of the question's row.

        This is so if the question has been answered or is not slow yet, because the task might then
        start soon.
        """
        young = self._clock.monotonic() < question.since + MOMENT
        return young or question.answer is not None

    def is_stuck(self, question: Question) -> bool:
        """Whether a question has not been sent to any helper, because no process can be forked."""
        unasked = question in self._queue and not question.kills and question.helper is None
        return unasked and self._clock.monotonic() < self._fork_at

    def receive(self) -> None:
        """Receive answers, kill the helpers that do not answer, and send waiting questions."""
        self._received = self._clock.monotonic()
        for helper in [*self._idle]:
            # A helper is not used again if it has exited or closed its link, or if it has sent a
            # message without a question.
            if helper.exit is not None or helper.link.receive() or helper.link.closed:
                self._idle.remove(helper)
                self._pool.kill(helper)
        for question in [*self._asked]:
            self._receive_answer(question)
        self._send()
        self.is_busy = bool(self._idle or self._asked or self._queue)

    @property
    def wakes(self) -> float:
        """When `receive` is to be called again, seconds of the monotonic clock."""
        moments = [question.sent + DEADLINE for question in self._asked]
        if self._queue:
            moments += [self._fork_at, *(question.sent + MOMENT for question in self._asked)]
        # After `MOMENT`, `is_reserved` returns False, so the worker must wake then to claim another
        # row instead.
        moments += [question.since + MOMENT for question in (*self._asked, *self._queue)]
        # Moments before the last `receive` are ignored, because that call has handled them.
        return min((moment for moment in moments if moment > self._received), default=inf)

    def dismiss(self) -> None:
        """Close the link of the idle helper process, so that the helper exits."""
        for helper in self._idle:
            helper.link.close()
        self._idle.clear()

    def _ask(self, case: PolicyRequest) -> Question:
        question = Question(case, class_name(case.row.cron or ""), self._clock.monotonic())
        self._queue.append(question)
        self._send()
        self.is_busy = True
        return question

    def _receive_answer(self, question: Question) -> None:
        helper = question.helper
        if helper is None:
            return
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
            # The question is sent again, to a new process, because another trigger might have
            # spoilt this process.
            question.fresh = True
            self._queue.append(question)
        else:
            question.answer = found
        # The helper is killed if it cannot be used again, or if another helper is idle, because one
        # idle helper is enough.
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
        """Send waiting questions, each as soon as the previous question is answered or slow."""
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
        """Whether a row with this trigger must be postponed, because of too many slow questions."""
        slow = [question for question in self._asked if self._is_slow(question)]
        name = class_name(trigger)
        same = sum(question.name == name for question in slow)
        return len(slow) >= _MOST_SLOW or same >= _MOST_SLOW_OF_ONE

    def _is_slow(self, question: Question) -> bool:
        return self._clock.monotonic() >= question.sent + MOMENT
