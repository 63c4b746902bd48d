"""Which requests the page answers: those of its own origin on this machine.

It listens on loopback, where ``kubectl port-forward`` leads to after the API server has checked who
asks. A browser on the same machine can be made to call it by any web site, so a request has to
name a loopback host (a site whose DNS name leads here names another one), and must not come from
another site's page.
"""

from collections.abc import Mapping
from typing import Final

SECURITY_HEADERS: Final[Mapping[str, str]] = {
    # Neither markup made from text nor code from elsewhere: the browser refuses both.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

_HOSTS: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
_OWN_SITE: Final = frozenset({"same-origin", "none"})


def why_not_answered(headers: Mapping[str, str]) -> str | None:
    """Return why a request with these headers is refused, or None.

    ``Sec-Fetch-Site`` is "none" for what a user typed; old browsers and curl do not send it.
    """
    host = headers.get("Host", "")
    if _name_of(host) not in _HOSTS:
        return "want the host localhost, 127.0.0.1 or [::1]: the page is for a forwarded port"
    origin = headers.get("Origin")
    if origin is not None and origin != f"http://{host}":
        return "the request comes from the page of another site"
    site = headers.get("Sec-Fetch-Site")
    if site is None or site in _OWN_SITE:
        return None
    # A link on another site may lead here, as any link may; it cannot read what it leads to.
    if headers.get("Sec-Fetch-Mode") == "navigate" and headers.get("Sec-Fetch-Dest") == "document":
        return None
    return "the request comes from the page of another site"


def _name_of(host: str) -> str:
    """Return a Host header without its port."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0].lower()
