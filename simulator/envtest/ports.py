"""Free loopback ports for programs whose port must be chosen beforehand."""

import errno
import random
import socket
from contextlib import ExitStack
from typing import Final

# Below the ports that Linux gives to outgoing connections (``ip_local_port_range``, ip(7)): one of
# those may be taken by any client between the choice and the start of the port's owner. Node ports
# of Services begin at 30000.
_PORTS: Final = range(20_000, 30_000)


def free_ports(count: int) -> tuple[int, ...]:
    """Return *count* distinct free ports on loopback, outside the range of outgoing connections.

    Another server may take one before its owner does; the owner's start then fails with a message
    that names the port.

    Raises:
        OSError: none is free.
    """
    found: list[int] = []
    with ExitStack() as held:
        for port in random.sample(_PORTS, len(_PORTS)):
            if len(found) == count:
                break
            probe = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                found.append(port)
    if len(found) < count:
        raise OSError(errno.EADDRINUSE, f"fewer than {count} ports of {_PORTS} are free")
    return tuple(found)
