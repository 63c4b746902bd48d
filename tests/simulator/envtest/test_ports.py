import socket

from simulator.envtest.ports import free_ports


def test_the_ports_are_distinct_and_can_be_listened_on() -> None:
    ports = free_ports(8)

    assert len(set(ports)) == 8
    for port in ports:
        with socket.socket() as server:
            server.bind(("127.0.0.1", port))
