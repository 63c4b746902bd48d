"""Listening on addresses of both families."""

import errno
import socket

import pytest

from process.sockets import ANY_ADDRESS, bound_socket

LOOPBACKS = ("127.0.0.1", "::1")


class WithoutIPv6(socket.socket):
    """A socket of a kernel that was started with ipv6.disable=1."""

    def __init__(self, family: int = socket.AF_INET, kind: int = socket.SOCK_STREAM) -> None:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        super().__init__(family, kind)


class WithoutIPv6Addresses(socket.socket):
    """A socket of a kernel with net.ipv6.conf.all.disable_ipv6=1."""

    def bind(self, address: object) -> None:
        if self.family == socket.AF_INET6:
            raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
        super().bind(address)  # type: ignore[arg-type]


def answers(listening: socket.socket, host: str) -> bool:
    """Report whether a client of *host* reaches the socket."""
    try:
        with socket.create_connection((host, listening.getsockname()[1]), timeout=5):
            return True
    except ConnectionRefusedError:
        return False


@pytest.mark.parametrize(
    ("host", "reached"),
    [
        (ANY_ADDRESS, LOOPBACKS),
        ("0.0.0.0", ("127.0.0.1",)),  # noqa: S104
        ("127.0.0.1", ("127.0.0.1",)),
        ("localhost", ("127.0.0.1",)),
        ("::1", ("::1",)),
    ],
)
def test_it_is_reached_at_the_addresses_it_was_told(host: str, reached: tuple[str, ...]) -> None:
    with bound_socket(host, 0, kind=socket.socket) as listening:
        listening.listen()

        assert tuple(address for address in LOOPBACKS if answers(listening, address)) == reached


@pytest.mark.parametrize("kind", [WithoutIPv6, WithoutIPv6Addresses])
def test_where_there_is_no_ipv6_every_address_is_every_one_of_ipv4(
    kind: type[socket.socket],
) -> None:
    with bound_socket(ANY_ADDRESS, 0, kind=kind) as listening:
        listening.listen()

        assert answers(listening, "127.0.0.1")
        assert not answers(listening, "::1")


@pytest.mark.parametrize("host", [ANY_ADDRESS, "127.0.0.1"])
def test_a_port_that_is_taken_is_not_shared(host: str) -> None:
    with bound_socket(host, 0, kind=socket.socket) as first:
        first.listen()

        with pytest.raises(OSError, match=f"address {host}, port .*[Aa]ddress already in use"):
            bound_socket(host, first.getsockname()[1], kind=socket.socket)
