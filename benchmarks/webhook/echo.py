"""A bare aiohttp handler over TLS that returns the body: the least that any answer costs.

``python -m benchmarks.webhook.echo PORT CERTIFICATE_AND_KEY``
"""

import ssl
import sys

from aiohttp import web


async def _echo(request: web.Request) -> web.Response:
    return web.Response(body=await request.read(), content_type="application/json")


def main(port: str, certificate: str) -> None:
    """Serve until the process is stopped."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    app = web.Application()
    app.router.add_post("/mutate", _echo)
    web.run_app(app, host="127.0.0.1", port=int(port), ssl_context=tls, access_log=None, print=None)


if __name__ == "__main__":
    main(*sys.argv[1:])
