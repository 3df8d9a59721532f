"""A small SMTP server on loopback, which keeps the mails that it gets."""

import base64
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field

from support.servers.certificates import Certificates


@dataclass
class SmtpServer:
    """What the server has got.

    Attributes:
        port: its port.
        refuses: the beginning of commands that it refuses, in capitals, and its answers.
        mails: the mails, with the ends of lines as they came.
        commands: the commands of all connections, in capitals, because Pythons differ in that.
        logins: the names and passwords.
        encrypted: for each mail, whether its connection was encrypted.
    """

    port: int
    refuses: dict[str, str] = field(default_factory=dict)
    mails: list[bytes] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    logins: list[tuple[str, str]] = field(default_factory=list)
    encrypted: list[bool] = field(default_factory=list)


class _Session:
    """One connection, whose commands are answered one after the other."""

    def __init__(self, server: SmtpServer, connection: socket.socket, tls: str) -> None:
        self._server = server
        self._tls = tls
        self._use(connection)

    def _use(self, connection: socket.socket) -> None:
        self._connection, self._file = connection, connection.makefile("rwb", buffering=0)

    def close(self) -> None:
        """Close the connection, which may be encrypted by now."""
        self._file.close()
        self._connection.close()

    def _say(self, *lines: str) -> None:
        for line in lines:
            self._file.write(f"{line}\r\n".encode())

    def serve(self, context: ssl.SSLContext) -> None:
        if self._tls == "tls":
            self._use(context.wrap_socket(self._connection, server_side=True))
        self._say("220 here")
        while line := self._file.readline().decode().strip():
            command = line.upper()
            self._server.commands.append(command)
            refusals = self._server.refuses.items()
            refused = [text for begin, text in refusals if command.startswith(begin)]
            if refused:
                self._say(refused[0])
            elif command == "STARTTLS":
                self._say("220 go")
                self._use(context.wrap_socket(self._connection, server_side=True))
            else:
                self._answer(line)

    def _answer(self, line: str) -> None:
        word = line.split(maxsplit=1)[0].lower()
        if word == "ehlo":
            offered = "STARTTLS" if self._tls == "starttls" else "8BITMIME"
            self._say("250-here", f"250-{offered}", "250 AUTH PLAIN")
        elif word == "auth":
            _, name, password = base64.b64decode(line.rsplit(maxsplit=1)[-1]).decode().split("\0")
            self._server.logins.append((name, password))
            self._say("235 yes")
        elif word == "data":
            self._say("354 send")
            lines = iter(self._file.readline, b".\r\n")
            self._server.mails.append(b"".join(lines))
            self._server.encrypted.append(isinstance(self._connection, ssl.SSLSocket))
            self._say("250 taken")
        else:
            self._say("221 bye" if word == "quit" else "250 yes")


@contextmanager
def smtp_server(certificates: Certificates | None = None, tls: str = "off") -> Iterator[SmtpServer]:
    """Run a server.

    Args:
        certificates: for TLS; None means none.
        tls: ``off``, ``starttls``, or ``tls`` from the beginning.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    if certificates is not None:
        context.load_cert_chain(certificates.certificate, certificates.key)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = SmtpServer(listening.getsockname()[1])

        def accept() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    session = _Session(server, connection, tls)
                    with suppress(OSError), closing(session):
                        session.serve(context)

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            listening.shutdown(socket.SHUT_RDWR)  # ends `accept`
            thread.join()
