"""The state of an HTTP/2 connection's protocol, and the options of its socket."""

import asyncio
import socket
from typing import ClassVar, Final

from h2.config import H2Configuration
from h2.connection import (
    ConnectionInputs,
    ConnectionState,
    H2Connection,
    H2ConnectionStateMachine,
)
from h2.settings import SettingCodes, Settings

STREAMS: Final = 256
"""Requests at once on a connection, those included that the caller has given up."""

_HEADERS_BYTES: Final = 16 * 1024
_STREAM_WINDOW_BYTES: Final = 1 << 20
# Larger than the sum of what may come before it is taken note of; a body has its own bound.
_CONNECTION_WINDOW_BYTES: Final = 1 << 24
_DEFAULT_WINDOW_BYTES: Final = 65_535  # RFC 9113, 6.9.2
# A caller whose machine is gone is noticed after 30 s and three probes, 10 s apart.
_KEEP_ALIVE: Final = {
    socket.TCP_KEEPIDLE: 30,
    socket.TCP_KEEPINTVL: 10,
    socket.TCP_KEEPCNT: 3,
}


class _StateMachine(H2ConnectionStateMachine):
    """As the library's, but after a caller's GOAWAY its requests are still answered.

    RFC 9113, 6.8: a GOAWAY ends no stream. The library takes and sends nothing after it.
    """

    _transitions: ClassVar = {  # type: ignore[misc]
        **H2ConnectionStateMachine._transitions,  # noqa: SLF001 - no public way to go on
        (ConnectionState.SERVER_OPEN, ConnectionInputs.RECV_GOAWAY): (
            None,
            ConnectionState.SERVER_OPEN,
        ),
    }


def new_state() -> H2Connection:
    """Return the state of a server's new connection; its settings are prepared for sending."""
    # What a caller sends is checked; our own headers are as they have to be.
    config = H2Configuration(
        client_side=False,
        header_encoding=None,
        validate_outbound_headers=False,
        normalize_outbound_headers=False,
    )
    state = H2Connection(config)
    state.state_machine = _StateMachine()
    state.local_settings = Settings(
        client=False,
        initial_values={
            SettingCodes.MAX_CONCURRENT_STREAMS: STREAMS,
            SettingCodes.MAX_HEADER_LIST_SIZE: _HEADERS_BYTES,
            SettingCodes.INITIAL_WINDOW_SIZE: _STREAM_WINDOW_BYTES,
        },
    )
    state.decoder.max_header_list_size = _HEADERS_BYTES  # the settings only announce it
    state.initiate_connection()
    state.increment_flow_control_window(_CONNECTION_WINDOW_BYTES - _DEFAULT_WINDOW_BYTES)
    return state


def set_options(transport: asyncio.BaseTransport) -> None:
    """Have answers sent at once, and a caller noticed that is gone without a word.

    Without TCP_NODELAY an answer waits for the caller's delayed acknowledgement of the last one;
    asyncio sets it only for sockets that were made with the number of TCP.
    """
    connection = transport.get_extra_info("socket")
    if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEP_ALIVE.items():
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
