"""SSL contexts that follow the settings, for drivers that accept a context."""

import ssl
from typing import NoReturn

from psched.config.tls import Tls


def ssl_context(tls: Tls) -> ssl.SSLContext:
    """Create an SSL context from the settings ``ssl_…``; each call reads their files again.

    Raises:
        ValueError: a file cannot be used; the text names the setting.
    """
    # From Python 3.13 on, ssl.create_default_context refuses the certificates that MySQL makes for
    # itself.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = tls.verify == "full"
    if tls.verify == "none":
        context.verify_mode = ssl.CERT_NONE
    reading = "ssl_ca"
    try:
        if tls.ca is not None:
            context.load_verify_locations(tls.ca)
        reading = "ssl_cert and ssl_key"
        if tls.cert is not None:
            context.load_cert_chain(tls.cert, tls.key, _refuse_to_ask)
    except OSError as error:
        # Neither the error for a missing file nor OpenSSL's names the file.
        raise ValueError(f"{reading} cannot be used: {error}") from None
    return context


def _refuse_to_ask() -> NoReturn:
    """Refuse to enter a password, because OpenSSL would otherwise ask for it at the terminal."""
    raise ValueError("ssl_key is encrypted; decrypt it: openssl pkey -in OLD -out NEW")
