"""Which addresses psched may send requests to.

The one who may write a URL into a configuration, or into the DNS of its host, must not thereby
reach services that listen only for the network of this machine.
"""

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

from psched.config.kinds import Network

Address = IPv4Address | IPv6Address

_NAT64 = IPv6Network("64:ff9b::/96")
_COMPATIBLE = IPv6Network("::/96")

_IPV4 = 0xFFFF_FFFF

_SPECIAL: Sequence[Network] = (
    IPv4Network("192.0.0.0/24"),  # for protocols, RFC 6890; Python 3.11.7 knows only parts of it
    IPv6Network("3fff::/20"),  # for documentation, RFC 9637
)
"""Networks that are not public, and that the module ipaddress of some versions of Python, to 3.13,
takes for public."""


def refusal(text: str, allowed: Sequence[Network] = ()) -> str | None:
    """Why no connection to an address may be made, as ``the private address 10.0.0.1``, or None.

    An IPv6 address that contains an IPv4 address, and leads to it, is judged by the IPv4 address.
    """
    address = _without_wrapping(ip_address(text.partition("%")[0]))
    if any(address in network for network in allowed):
        return None
    kind = _kind_of(address)
    return f"the {kind} address {address}" if kind else None


def _without_wrapping(address: Address) -> Address:
    """The IPv4 address that an IPv6 address stands for; any other address as it is."""
    if not isinstance(address, IPv6Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    # ::1 and :: are no IPv4 addresses.
    if address in _NAT64 or (address in _COMPATIBLE and int(address) > 1):
        return IPv4Address(int(address) & _IPV4)
    return address


def _kind_of(address: Address) -> str | None:
    """What an address is if it is not a public address of one machine."""
    kinds = {
        "unspecified": address.is_unspecified,
        "loopback": address.is_loopback,
        "link-local": address.is_link_local,
        "multicast": address.is_multicast,
        "private": address.is_private
        or (isinstance(address, IPv6Address) and address.is_site_local)
        or any(address in network for network in _SPECIAL),
        # Addresses between a provider and its customers (100.64.0.0/10) are not private.
        "reserved": address.is_reserved or not address.is_global,
    }
    return next((kind for kind, applies in kinds.items() if applies), None)
