"""What the command check says about pings."""

from contextlib import suppress
from ipaddress import ip_address

import click

from psched.base.errors import ConfigError
from psched.config import Config
from psched.config.monitoring.http_url import parse
from psched.notify.addresses import refusal


def check_pings(settings: Config) -> None:
    """Print where pings are sent, and check that this is allowed, as far as the URLs show it.

    No name is looked up, and no ping is sent.
    """
    refused = []
    for name, url in settings.pings.items():
        target = parse(url)
        why = _refusal(target.host, settings)
        click.echo(f"ping {name}: to {target.shown}: {'ok' if why is None else 'refused'}")
        if why is not None:
            refused.append(f"pings.{name}: leads to {why}; name it in allow_private_addresses")
    if refused:
        raise ConfigError("\n".join(refused))


def _refusal(host: str, settings: Config) -> str | None:
    """Why nothing is sent to a host, if its URL shows that."""
    address = "127.0.0.1" if host == "localhost" else host
    with suppress(ValueError):
        return refusal(str(ip_address(address)), settings.allow_private_addresses)
    return None
