"""Whether clients would accept a server's certificate, by a handshake in memory."""

import ssl
from typing import Final

_TURNS: Final = 10  # a handshake of TLS 1.3 takes two, one of TLS 1.2 three


def why_refused(server: ssl.SSLContext, *, name: str, trusted_pem: bytes, partial: bool) -> str:
    """Return why a client that trusts *trusted_pem* would refuse *server* as *name*, or ''.

    The client checks the chain, the purpose, the names and, by this machine's clock, the dates. If
    the server requests a client certificate, none is sent, and that is not held against it.

    Args:
        server: the context that serves.
        name: DNS name by which the server is called; names are not compared if it is empty.
        trusted_pem: certificates to trust.
        partial: trust also those of them that are not CAs, so that a chain may end there.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = bool(name)
    client.hostname_checks_common_name = False  # kube-apiserver does not check it either
    if partial:
        client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        client.load_verify_locations(cadata=trusted_pem.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        return f"its CA certificates cannot be read: {error}"
    try:
        return "" if _shake(client, server, name) else "the handshake does not complete"
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    except ssl.SSLError as error:
        return str(error)


def _shake(client: ssl.SSLContext, server: ssl.SSLContext, name: str) -> bool:
    """Report whether the client's side of a handshake in memory completes."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(to_client, to_server, server_hostname=name or None)
    serving = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(_TURNS):
        for side in (asking, serving):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            if side is asking:
                return True
    return False
