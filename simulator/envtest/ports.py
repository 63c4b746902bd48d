"""Free loopback ports for programs whose port must be chosen beforehand."""

import socket
from contextlib import ExitStack


def free_ports(count: int) -> tuple[int, ...]:
    """Return *count* distinct free ports on loopback.

    Another program may take one before its owner does; the kernel hands out others first, and the
    owner's start then fails with a message that names the port.
    """
    with ExitStack() as held:
        found = []
        for _ in range(count):
            probe = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            probe.bind(("127.0.0.1", 0))
            found.append(int(probe.getsockname()[1]))
        return tuple(found)
