"""A bare aiohttp handler over TLS that sends back what it got: what any answer costs at least.

``python -m benchmarks._echo_server PORT CERTIFICATE_AND_KEY_FILE``
"""

import ssl
import sys

from aiohttp import web


async def _echo(request: web.Request) -> web.Response:
    return web.Response(body=await request.read(), content_type="application/json")


def main(port: str, certificate: str) -> None:
    """Serve until somebody ends the process."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    app = web.Application(client_max_size=3 * 1024 * 1024)
    app.router.add_post("/mutate", _echo)
    web.run_app(
        app, host="127.0.0.1", port=int(port), ssl_context=context, access_log=None, print=None
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
