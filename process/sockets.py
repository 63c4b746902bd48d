"""Where a server listens, on clusters of IPv4, of IPv6 and of both."""

import errno
import socket
from typing import Final, TypeVar

ANY_ADDRESS: Final = "::"
"""Every address of the machine, of both families."""
_ANY_IPV4: Final = "0.0.0.0"  # noqa: S104 - for who asked for every address
# Errors of a kernel without IPv6, from socket() (not compiled in, ipv6.disable=1) or from bind()
# (net.ipv6.conf.all.disable_ipv6=1).
_NO_IPV6: Final = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)

S = TypeVar("S", bound=socket.socket)


def bound_socket(host: str, port: int, *, kind: type[S]) -> S:
    """Return a socket of *kind* that is bound but not listening.

    Args:
        host: an IP address, or a name; ``::`` is every address of both families, and of IPv4 alone
            where there is no IPv6. ``0.0.0.0`` is every address of IPv4.
        port: 0 for a free one.
        kind: ``socket.socket`` or a subclass.

    Raises:
        OSError: the address is taken, or is not this machine's.
    """
    family = _family(host)
    if host != ANY_ADDRESS:
        return _bound(kind, family, host, port)
    try:
        return _bound(kind, family, host, port)
    except OSError as error:
        if error.errno not in _NO_IPV6:
            raise
        return _bound(kind, socket.AF_INET, _ANY_IPV4, port)


def _family(host: str) -> socket.AddressFamily:
    """Return the family of an address; of a name with both, IPv4."""
    found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    families = {each[0] for each in found}
    return socket.AF_INET if socket.AF_INET in families else socket.AF_INET6


def _bound(kind: type[S], family: socket.AddressFamily, host: str, port: int) -> S:
    made = kind(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family is socket.AF_INET6:
            # Independently of net.ipv6.bindv6only, only "::" accepts IPv4 clients as well.
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(host != ANY_ADDRESS))
        made.bind((host, port))
    except OSError as error:
        made.close()
        problem = f"cannot listen on address {host}, port {port}: {error.strerror}"
        raise OSError(error.errno, problem) from error
    return made
