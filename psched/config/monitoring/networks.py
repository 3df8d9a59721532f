"""The kind of value of the setting ``allow_private_addresses``."""

from ipaddress import IPv4Network, IPv6Network, ip_network

from typing_extensions import override

from psched.config.kinds import Kind
from psched.config.problems import InvalidValueError
from psched.config.references import Context

Network = IPv4Network | IPv6Network

EVERYWHERE: tuple[Network, ...] = (ip_network("0.0.0.0/0"), ip_network("::/0"))
"""The networks that contain every address."""


class Networks(Kind):
    """Networks: all (on), none (off), or those in a list.

    A boolean is accepted, because YAML reads ``on`` as true and ``off`` as false.
    """

    description = "on, off or a list of networks such as 10.1.0.0/16"

    @override
    def read(self, value: object, context: Context) -> tuple[Network, ...]:
        words = {"on": True, "off": False}
        if isinstance(value, str):
            value = words.get(self.text(value, context))
            if value is None:
                raise InvalidValueError(f"must be {self.description}; one network is a list, too")
        if isinstance(value, bool):
            return EVERYWHERE if value else ()
        if not isinstance(value, list | tuple):
            raise self.mismatch(value)
        return tuple(self._network(each, context) for each in value)

    def _network(self, value: object, context: Context) -> Network:
        if isinstance(value, IPv4Network | IPv6Network):
            return value
        try:
            return ip_network(self.text(value, context))
        except ValueError:
            raise InvalidValueError(
                f"must be {self.description}; the bits after the prefix of a network are zero"
            ) from None
