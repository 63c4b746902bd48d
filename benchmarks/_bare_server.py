"""A bare aiohttp handler over TLS that decodes and encodes again what it got.

It is what any extender costs that reads its requests: the measure for ours.

``python -m benchmarks._bare_server PORT CERTIFICATE_AND_KEY_FILE``
"""

import ssl
import sys

import msgspec
from aiohttp import web


async def _again(request: web.Request) -> web.Response:
    body = msgspec.json.encode(msgspec.json.decode(await request.read()))
    return web.Response(body=body, content_type="application/json")


def main(port: str, certificate: str) -> None:
    """Serve until somebody ends the process."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_post("/{verb}", _again)
    web.run_app(
        app, host="127.0.0.1", port=int(port), ssl_context=context, access_log=None, print=None
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
