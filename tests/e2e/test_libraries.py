"""Libraries that handler modules import, and use, at import: the table in docs/tasks.md."""

import fcntl
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from textwrap import dedent

import pytest

from support.code_blocks import ROOT
from support.waiting import HANG_TIMEOUT

pytestmark = pytest.mark.extended

PACKAGES = [
    *("numpy", "pandas", "scikit-learn", "lxml", "pillow", "django", "requests", "boto3", "redis"),
    *("sentry-sdk", "opentelemetry-sdk", "grpcio", "psycopg[binary,pool]"),
]

_IMPORTS = 10 * HANG_TIMEOUT
"""The most seconds for importing them, from files that nobody has compiled yet."""


@pytest.fixture(scope="session")
def libraries():
    """A folder with these packages, made once: they are not those of psched."""
    folder = ROOT / ".venv-libraries-{}.{}".format(*sys.version_info)
    folder.mkdir(exist_ok=True)
    with (folder / "made").open("a+") as made:
        fcntl.flock(made, fcntl.LOCK_EX)  # other processes of this test run want it, too
        made.seek(0)
        if made.read() != " ".join(PACKAGES):
            uv = Path(sys.executable).with_name("uv")  # where bin/venv could install it
            install = [sys.executable, "-m", "pip", "install"]
            if uv.exists():
                install = [uv, "pip", "install", "--python", sys.executable]
            done = subprocess.run(
                [*install, "-q", "--target", folder, *PACKAGES],
                stderr=subprocess.PIPE,
                text=True,
                timeout=10 * HANG_TIMEOUT,
                check=False,
            )
            if done.returncode:
                give_up = pytest.fail if os.environ.get("PSCHED_TEST_NO_SKIP") else pytest.skip
                give_up(f"the libraries cannot be installed: {done.stderr[-300:]}")
            made.truncate(0)
            made.write(" ".join(PACKAGES))
    return folder


class Answers(BaseHTTPRequestHandler):
    """Answers each request with an empty JSON object, and notes it."""

    protocol_version = "HTTP/1.1"
    heard: list[str]

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.heard.append(self.path)
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def do_GET(self):
        self.do_POST()

    def log_message(self, *_words):
        """Print nothing, as `BaseHTTPRequestHandler` would for each request."""


@pytest.fixture
def peer():
    """An HTTP server, and the paths that it was asked for."""
    heard = []
    kind = type("Noting", (Answers,), {"heard": heard})
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", heard
        server.shutdown()
        thread.join()


@pytest.fixture
def with_libraries(service, libraries):
    """A function that runs two tasks of a module; it returns what psched check and the log say."""

    def run(code, **env):
        service.write("h.py", dedent(code) + dedent(DISPATCH))
        service.configure(
            dispatch="h:Dispatch", load_path=[".", str(libraries)], start_timeout=_IMPORTS
        )
        service.env.update(env)
        checked = service.psched("check")
        assert checked.returncode == 0, checked.stderr
        master = service.start(generation=0)
        master.wait_for_log("generation 1 serves, ", timeout=_IMPORTS)
        for key in "one", "two":
            service.add(key, "runs", max_attempts=1)
            service.wait_for_row(key, lambda seen: seen.status not in {"waiting", "running"})
            assert service.row(key).status == "finished", master.text
        assert master.stop() == 0
        return checked.stdout, master.text

    return run


DISPATCH = """
    from psched.application import Dispatch as Base

    class Dispatch(Base):
        routes = {"runs": runs}
"""

WORKING = {
    "numpy": """
    import numpy

    def runs(task):
        assert numpy.linalg.inv(numpy.eye(300) * 2)[0, 0] == 0.5
    """,
    "pandas and scikit-learn": """
    import numpy, pandas
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression

    X, Y = numpy.arange(100).reshape(50, 2), [0, 1] * 25
    MODEL = LogisticRegression().fit(X, Y)  # starts threads

    def runs(task):
        HistGradientBoostingClassifier(max_iter=3).fit(X, Y)
        assert len(MODEL.predict(X)) == 50
        assert pandas.DataFrame(X).sum()[0] == 2450
    """,
    "lxml and Pillow": """
    from pathlib import Path
    from lxml import etree
    from PIL import Image

    PATH = Path(__file__).with_name("image.png")
    Image.new("RGB", (9, 9), "red").save(PATH)
    IMAGE = Image.open(PATH)  # is read when it is used
    PARSER = etree.XMLParser()

    def runs(task):
        assert IMAGE.resize((3, 3)).getpixel((1, 1)) == (255, 0, 0)
        assert etree.fromstring("<a/>", PARSER).tag == "a"
    """,
    "OpenTelemetry without a thread": """
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

    PROVIDER = TracerProvider()
    PROVIDER.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter()))

    def runs(task):
        with PROVIDER.get_tracer("h").start_as_current_span("of the task"):
            pass
    """,
    "grpcio": """
    import grpc

    def runs(task):
        ready = grpc.channel_ready_future(grpc.insecure_channel("127.0.0.1:1"))
        try:
            ready.result(timeout=0.1)
        except grpc.FutureTimeoutError:
            return
        raise AssertionError("nobody listens there")
    """,
}


@pytest.mark.parametrize("code", WORKING.values(), ids=WORKING.keys())
def test_libraries_that_work(with_libraries, code):
    checked, log = with_libraries(code)
    assert "descriptor" not in checked + log


def test_djangos_logging_works(with_libraries, service):
    _, log = with_libraries(
        """
        from pathlib import Path
        import django, logging
        from django.conf import settings

        HERE = Path(__file__).parent
        file = {"class": "logging.FileHandler", "filename": HERE / "debug.log"}
        settings.configure(
            LOGGING={
                "version": 1,
                "handlers": {"file": file},
                "root": {"handlers": ["file"], "level": "INFO"},
                "loggers": {"shop": {"handlers": ["file"], "propagate": False}},
            },
            DATABASES={
                "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": HERE / "shop.sqlite3"}
            },
        )
        django.setup()

        def runs(task):
            from django.db import connection
            with connection.cursor() as cursor:
                cursor.execute("select 1")
            logging.getLogger("shop").warning("sold by %s", task.key)
            logging.getLogger("other").info("noted by %s", task.key)
        """
    )
    for text in "sold by two", "noted by two":
        assert text in (service.folder / "debug.log").read_text()
    assert "[two.1000000000] finished" in log


def test_connections_that_were_used_at_import_are_named_and_made_again(
    with_libraries, peer, redis_server
):
    url, heard = peer
    said = with_libraries(
        """
        import os
        import boto3, redis, requests

        URL = os.environ["PEER"]
        SESSION = requests.Session()
        assert SESSION.get(f"{URL}/import").ok
        keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "region_name": "eu-west-1"}
        TABLES = boto3.client("dynamodb", endpoint_url=URL, **keys)
        TABLES.list_tables()
        REDIS = redis.Redis(unix_socket_path=os.environ["REDIS"])
        REDIS.ping()

        def runs(task):
            assert SESSION.get(f"{URL}/{task.key}").ok
            TABLES.list_tables()
            assert REDIS.ping()
        """,
        PEER=url,
        REDIS=str(redis_server.socket),
    )
    assert {"/one", "/two"} < {*heard}
    for text in said:
        assert text.count(f"a socket to {url.removeprefix('http://')}, ") == 2
        assert text.count(f"a socket to {redis_server.socket}, ") == 1
        assert text.count("the module 'h' has opened") == 3


def test_sentry_works(with_libraries, peer):
    url, heard = peer
    with_libraries(
        """
        import os
        import sentry_sdk
        from sentry_sdk.integrations.logging import ignore_logger

        sentry_sdk.init(os.environ["PEER"].replace("://", "://key@") + "/1")
        ignore_logger("psched.worker")

        def runs(task):
            sentry_sdk.capture_message("of the task")
            sentry_sdk.flush(60)
        """,
        PEER=url,
    )
    assert heard == ["/api/1/envelope/"] * 2


REFUSED = {
    "'OtelBatchSpanRecordProcessor' of the module 'h'": """
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

    PROVIDER = TracerProvider()
    PROVIDER.add_span_processor(BatchSpanProcessor(ConsoleSpanExporter()))
    """,
    "of native code (loaded: grpc": """
    import grpc

    CHANNEL = grpc.insecure_channel("127.0.0.1:1")
    try:
        CHANNEL.unary_unary("/a/b")(b"", timeout=1)
    except grpc.RpcError:
        pass
    """,
    "'pool-1-worker-0' of the module 'h'": """
    import psycopg_pool

    POOL = psycopg_pool.ConnectionPool("host=127.0.0.1 port=1", open=True)
    """,
}


@pytest.mark.parametrize(("named", "code"), REFUSED.items())
def test_threads_of_libraries_are_named_and_refused(service, libraries, named, code):
    service.write("h.py", dedent(code) + "def runs(task): ...\n" + dedent(DISPATCH))
    service.configure(dispatch="h:Dispatch", load_path=[".", str(libraries)])
    checked = service.psched("check")
    master = service.start(generation=0)
    assert (checked.returncode, master.wait()) == (1, 65)
    for said in checked.stderr, master.text:
        assert named in said
        assert "let it start them when a task runs, or in after_fork" in said
