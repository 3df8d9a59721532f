"""Live output: what a collector holds for a reader, and what a master passes on to its clients."""

import select
import socket
from contextlib import closing, suppress
from threading import Thread

import pytest

from psched.cli.history import live_output
from psched.cli.history.live_output import LiveHere
from psched.cli.history.logs import OutputPrinter
from psched.core.output import Output, OutputRecord
from psched.master.messages import LONGEST_PIECE, TO_READER
from psched.master.reports import queries
from psched.master.reports.output_relay import MOST_READERS, MOST_WAITING, OutputRelay
from psched.master.reports.status_socket import StatusReader
from psched.output.collector import LONGEST_LIVE, MOST_PENDING, LiveReader
from psched.process.link import LONGEST_TIME, Link, packed
from psched.reports.redaction import Redaction
from psched.testing import ManualClock
from support.waiting import HANG_TIMEOUT

KEY = "k"


def test_a_reader_first_gets_the_output_so_far_and_then_what_follows():
    reader = LiveReader(b"begin", 7)
    assert reader.has_news
    assert reader.take() == (b"begin", 7)
    assert not reader.has_news
    reader.add(b" more")
    assert reader.take() == (b" more", 0)


def test_a_silent_attempt_is_announced_once():
    reader = LiveReader(b"", 0)
    assert [*reader.rest()] == [(b"", 0)]
    assert [*reader.rest()] == []


def test_output_that_was_dropped_before_is_told_with_the_next_bytes():
    reader = LiveReader(b"", 7)
    assert reader.take() == (b"", 0)
    reader.add(b"x")
    assert reader.take() == (b"x", 7)


def test_of_much_output_the_oldest_is_left_out():
    reader = LiveReader(b"", 0)
    reader.add(b"a" * 1000 + b"b" * MOST_PENDING)
    pieces = [*reader.rest()]
    assert b"".join(piece for piece, _ in pieces) == b"b" * MOST_PENDING
    assert [dropped for _, dropped in pieces] == [1000, 0, 0, 0]
    assert max(len(piece) for piece, _ in pieces) == LONGEST_LIVE == LONGEST_PIECE


class Worker:
    """What the relay knows of a worker, which notes what it is told."""

    def __init__(self, pid):
        self.pid = pid
        self.ready = True
        self.told = []

    def tell(self, **message):
        self.told.append(message)


class Client:
    """A client of the master's socket."""

    def __init__(self):
        theirs, ours = socket.socketpair()
        self.reader = StatusReader(ours, LONGEST_TIME, streams=True)
        self.link = Link(theirs)
        self.link.expects, self.link.data_limit = TO_READER, LONGEST_PIECE
        self.link.send({"follow": KEY})
        self.reader.advance(0)

    def close(self):
        self.link.close()
        self.reader.close()

    def received(self):
        """What has arrived; the client reads all that the master sends meanwhile."""
        found = []
        while True:
            self.reader.advance(0)
            messages = self.link.receive()
            if not messages and (self.reader.closed or not self.reader.unsent):
                return found
            found += messages


@pytest.fixture
def connect():
    """Connects clients; disconnects them at the test's end."""
    clients = []

    def connect():
        clients.append(Client())
        return clients[-1]

    yield connect
    for client in clients:
        client.close()


@pytest.fixture
def relay():
    return OutputRelay(ManualClock())


FOLLOWS = {"follows": 1, "scheduled_time": 5, "attempt": 2, "owner": "o", "collected": True}


def output(data, reader=1):
    return {"output": reader, "dropped": 0, "waiting": 0, "data": data}


def test_only_the_worker_that_runs_the_task_is_passed_on(relay, connect):
    one, other, client = Worker(2), Worker(3), connect()
    assert client.reader.asks_for == KEY
    relay.begin([client.reader], [one, other])
    assert client.reader.asks_for is None
    assert one.told == other.told == [{"follow": KEY, "reader": 1}]
    relay.take({"absent": 1}, 3)
    relay.take(FOLLOWS, 2)
    relay.take(output(b"theirs"), 3)
    relay.take(output(b"ours\xff"), 2)
    relay.look([one, other])
    relay.take({"ended": 1}, 2)
    kinds = client.received()
    assert [next(iter(each)) for each in kinds] == ["follows", "output", "over"]
    assert (kinds[1]["data"], kinds[2]["over"]) == (b"ours\xff", "ended")
    assert client.reader.closed


@pytest.mark.parametrize("pid", [2, 3])
def test_a_task_that_no_worker_runs_is_absent(relay, connect, pid):
    one, other, client = Worker(2), Worker(3), connect()
    relay.begin([client.reader], [one, other])
    relay.take({"absent": 1}, pid)
    relay.look([one, other])
    assert client.received() == []
    relay.look([one] if pid == 2 else [other])  # the other worker has ended
    assert client.received() == [{"over": "absent"}]


def test_the_end_of_its_worker_is_told(relay, connect):
    worker, client = Worker(2), connect()
    relay.begin([client.reader], [worker])
    relay.take(FOLLOWS, 2)
    relay.look([])
    assert client.received()[-1] == {"over": "worker ended"}


def test_a_client_that_does_not_read_is_cut_off_and_its_worker_told(relay, connect):
    worker, client = Worker(2), connect()
    relay.begin([client.reader], [worker])
    relay.take(FOLLOWS, 2)
    for _ in range(20):
        relay.take(output(b"x" * LONGEST_PIECE), 2)
        client.reader.advance(0)
        assert client.reader.waiting_bytes < MOST_WAITING + 2 * LONGEST_PIECE
    relay.look([worker])
    assert worker.told[1:] == [{"unfollow": 1}]
    messages = client.received()
    assert messages[-1] == {"over": "too slow"}
    assert len(messages) < 12


def test_a_client_that_hangs_up_stops_its_worker(relay, connect):
    worker, client = Worker(2), connect()
    relay.begin([client.reader], [worker])
    client.link.close()
    client.reader.advance(0)
    relay.look([worker])
    assert worker.told[1:] == [{"unfollow": 1}]
    assert relay.look([worker]) == float("inf")


def test_too_many_clients_are_refused(relay, connect):
    worker = Worker(2)
    clients = [connect() for _ in range(MOST_READERS + 1)]
    relay.begin([client.reader for client in clients], [worker])
    assert [client.received() for client in clients] == [[]] * MOST_READERS + [
        [{"over": "too many"}]
    ]


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("sent", [b"x", b"\0" * 8, b"\xff" * 9, b"\0\0\0\2\0\0\0\0{}"])
def test_a_client_that_sends_anything_else_is_disconnected(sent, streams):
    theirs, ours = socket.socketpair()
    reader = StatusReader(ours, LONGEST_TIME, streams=streams)
    with theirs:
        theirs.sendall(sent)
        reader.advance(0)
        assert reader.closed


def test_a_client_may_ask_only_once(connect):
    client = connect()
    assert not client.reader.closed
    client.link.send({"follow": "another"})
    client.reader.advance(0)
    assert client.reader.closed


# --- what is shown -------------------------------------------------------------------


def test_output_is_shown_as_it_was_printed_whatever_its_pieces(capsys):
    written = b"\x1eone\nprin\x1eted\n"
    record = OutputRecord(
        key=KEY, scheduled_time=1, owner="o", attempt=1, ended=1500, output=written, dropped=None
    )
    shown = Output(record)
    assert shown.raw == written
    assert (shown.ended, shown.dropped, shown.is_live) == (1.5, None, False)
    for size in range(1, len(written)):
        printer = OutputPrinter(Redaction(()), raw=False)
        for at in range(0, len(written), size):
            printer.write(written[at : at + size])
        printer.end()
        assert capsys.readouterr().out == "\\x1eone\nprin\\x1eted\n"


def test_a_value_is_hidden_even_if_it_arrives_in_pieces(capsys):
    printer = OutputPrinter(Redaction(["password"]), raw=False)
    for piece in (b"pass", b"word=ge", b"heim\nuser", b"=\xc3", b"\xa4"):
        printer.write(piece)
    printer.end()
    assert capsys.readouterr().out == "password=[redacted]\nuser=ä\n"


# --- a master that hangs --------------------------------------------------------------

FOLLOWS = {"follows": 1, "attempt": 1, "owner": "w.1", "scheduled_time": 1, "collected": True}


PIECE = packed({"output": 1, "dropped": 0, "waiting": 10**6}, b"x" * 9999)


@pytest.mark.parametrize("size", [0, 1, len(PIECE)], ids=["nothing more", "bytes", "messages"])
def test_a_master_that_begins_its_answer_and_hangs_is_given_up(tmp_path, monkeypatch, size):
    monkeypatch.setattr(live_output, "_LONGEST", 0.2)
    monkeypatch.setattr(queries, "_SILENCE", 0.1)
    path = tmp_path / "master.1.sock"

    def answer(master):
        with suppress(OSError), master.accept()[0] as client:
            client.sendall(packed(FOLLOWS))
            sent = 0
            while not select.select([client], [], [], 0.02)[0] or client.recv(4096):
                client.sendall(PIECE[sent : sent + size])
                sent = (sent + size) % len(PIECE)

    with socket.socket(socket.AF_UNIX) as master:
        master.bind(str(path))
        master.listen()
        answering = Thread(target=answer, args=[master])
        answering.start()
        with closing(queries.follow(path, KEY, HANG_TIMEOUT)) as messages:
            live = LiveHere(KEY, next(messages), messages)
            with pytest.raises(TimeoutError, match="does not answer"):
                live.so_far()
        answering.join()


def test_a_master_that_accepts_nobody_is_given_up(tmp_path):
    path = tmp_path / "master.1.sock"
    with socket.socket(socket.AF_UNIX) as master, socket.socket(socket.AF_UNIX) as other:
        master.bind(str(path))
        master.listen(0)
        other.connect(str(path))
        with pytest.raises(OSError, match="unavailable"):
            next(queries.follow(path, KEY, 0.1))
