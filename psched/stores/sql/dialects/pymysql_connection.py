"""PyMySQL's connection, changed to check the size of statements, and to save time and memory."""

import ssl
from typing import Any

import pymysql
from pymysql.connections import Connection
from typing_extensions import override

from psched.config.urls import Tls
from psched.stores import encryption

_UNCHECKED = Tls(verify="none", ca=None, cert=None, key=None)

_SURELY_ACCEPTED = 200_000
"""A number of characters that every server accepts in a statement.

Each character has at most four bytes. The size of a longer statement must be checked.
"""


class PyMySQLConnection(Connection):
    """A connection that checks the size of statements, and needs fewer requests and less memory.

    A server can close the connection when it receives a statement that is too large, and the client
    then does not know whether the statement was applied. So this class does not send such a
    statement, but raises the error that servers use for it.

    This class sends no statements on connecting, because each one takes a round trip;
    `Dialect.begin_session` sets the character set together with other options.

    If the connection is encrypted, but the server's certificate is not checked, this class does not
    load the system's certificate authorities, which would take 25 ms, and memory in every worker.
    """

    _max_packet: int | None = None

    def fileno(self) -> int:
        """The descriptor of the socket, as the connections of other drivers return it."""
        return int(self._sock.fileno())  # type: ignore[attr-defined]  # not in its stubs

    @override
    def set_character_set(self, charset: str, collation: str | None = None) -> None:
        del charset, collation  # `Dialect.begin_session` sets both

    @override
    def query(self, sql: str | bytes, unbuffered: bool = False) -> int:  # PyMySQL's signature
        if len(sql) > _SURELY_ACCEPTED:
            # `Cursor.executemany` passes a bytearray.
            content = sql.encode(self.encoding, "surrogateescape") if isinstance(sql, str) else sql
            largest = self._largest_statement()
            # One is added, because a packet begins with one byte for the command.
            if len(content) + 1 > largest:
                raise pymysql.err.DataError(
                    1153,
                    f"the statement has {len(content):,} bytes, and the server accepts {largest:,}:"
                    " raise its max_allowed_packet, or keep less in data",
                )
        return super().query(sql, unbuffered)

    @override
    def escape(self, obj: object, mapping: Any = None) -> str:
        # Most values are these, for which PyMySQL makes three calls each.
        if obj is None:
            return "NULL"
        return str(obj) if type(obj) is int else super().escape(obj, mapping)

    def _create_ssl_ctx(self, sslp: Any) -> ssl.SSLContext:  # noqa: ANN401  # PyMySQL's
        """Create an SSL context from PyMySQL's options.

        Without options, the context does not check the server's certificate.
        """
        if sslp:
            context: ssl.SSLContext = super()._create_ssl_ctx(sslp)  # type: ignore[misc]  # not in its stubs
            return context
        return encryption.ssl_context(_UNCHECKED)

    def _largest_statement(self) -> int:
        if self._max_packet is None:
            with self.cursor() as cursor:
                cursor.execute("SELECT @@max_allowed_packet")
                ((self._max_packet,),) = cursor.fetchall()
        return self._max_packet
