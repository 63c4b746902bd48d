import base64
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, timedelta

import aiohttp
import pytest
from cryptography import x509
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from certs.authority import Pair, make_serving
from component.certificate_expiry import not_after
from component.certificate_watcher import CertificateWatcher
from component.metrics import CertificateMetrics
from kube.client import KubeClient
from kube.kinds import SECRETS
from process.tls import ServingTls
from simulator.background import background
from tests.certs.tls_harness import HOUR, a_ca, a_client, a_leaf, ask, https, now, trusting
from tests.fakes.clock import VirtualClock
from tests.support.waiting import until_true


def a_secret(name: str, **data: bytes) -> dict[str, object]:
    """Return a Secret in the default namespace; an underscore in a key of *data* is a dot."""
    encoded = {
        key.replace("_", "."): base64.b64encode(value).decode() for key, value in data.items()
    }
    return {"metadata": {"name": name, "namespace": "default"}, "data": encoded}


def keys_of(pair: Pair) -> dict[str, bytes]:
    return {"tls_crt": pair.cert_pem, "tls_key": pair.key_pem}


class Following:
    """A watcher of Secret default/tls, and what it reported so far."""

    def __init__(self, client: KubeClient, *, mutual: bool) -> None:
        self.registry = CollectorRegistry()
        self.tls = ServingTls(require_client_certificate=mutual)
        self.clock = VirtualClock()
        self.certificate = CertificateWatcher(
            client,
            self.tls,
            metrics=CertificateMetrics("webhook", self.registry, self.clock),
            namespace="default",
            secret="tls",
            service_name="localhost",
        )

    def counted(self, outcome: str) -> float | None:
        labels = {"outcome": outcome}
        return self.registry.get_sample_value("fracgpu_webhook_certificates_total", labels)

    async def until_counted(self, *, taken: int, refused: int = 0) -> None:
        await until_true(
            lambda: (self.counted("taken"), self.counted("refused")) == (taken, refused),
            what=f"{taken} certificates taken and {refused} refused",
        )


@pytest.fixture
async def following(kube: KubeClient, request: pytest.FixtureRequest) -> AsyncIterator[Following]:
    """Follow the Secret; parametrized with True, also ask callers for their certificates."""
    following = Following(kube, mutual=getattr(request, "param", False))
    async with background(*(run() for run in following.certificate.tasks.values())):
        yield following


async def test_the_secret_is_served_once_it_is_there(
    kube: KubeClient, following: Following
) -> None:
    assert following.certificate.problem() == "the API server has not listed secrets yet"
    await until_true(
        lambda: following.certificate.problem() == "there is no Secret default/tls yet",
        what="the Secret is missing",
    )
    ca = a_ca()

    await kube.create(SECRETS, a_secret("tls", **keys_of(a_leaf(ca))))
    await following.until_counted(taken=1)

    assert following.certificate.problem() is None
    async with https(following.tls) as url:
        assert await ask(url, trusting(ca.cert_pem)) == "ok"


async def test_a_renewed_secret_replaces_the_certificate_while_serving(
    kube: KubeClient, following: Following
) -> None:
    old, new = a_ca(), a_ca()
    await kube.create(SECRETS, a_secret("tls", **keys_of(a_leaf(old))))
    await following.until_counted(taken=1)
    async with https(following.tls) as url:
        assert await ask(url, trusting(old.cert_pem)) == "ok"

        await kube.replace(SECRETS, a_secret("tls", **keys_of(a_leaf(new))))
        await following.until_counted(taken=2)

        assert await ask(url, trusting(new.cert_pem)) == "ok"


async def test_a_spoilt_or_deleted_secret_leaves_the_old_certificate_in_use(
    kube: KubeClient, following: Following
) -> None:
    ca = a_ca()
    leaf = a_leaf(ca)
    await kube.create(SECRETS, a_secret("tls", **keys_of(leaf)))
    await following.until_counted(taken=1)

    await kube.replace(SECRETS, a_secret("tls", tls_crt=leaf.cert_pem))
    await following.until_counted(taken=1, refused=1)
    await kube.replace(SECRETS, a_secret("tls", tls_crt=b"junk", tls_key=leaf.key_pem))
    await following.until_counted(taken=1, refused=2)
    await kube.delete(SECRETS, "tls", namespace="default")

    assert following.certificate.problem() is None
    async with https(following.tls) as url:
        assert await ask(url, trusting(ca.cert_pem)) == "ok"


async def test_a_secret_that_was_never_good_says_what_is_missing(
    kube: KubeClient, following: Following
) -> None:
    await kube.create(SECRETS, a_secret("tls", tls_key=b"junk"))
    await following.until_counted(taken=0, refused=1)

    assert following.certificate.problem() == "Secret default/tls: the Secret has no tls.crt"


async def test_another_secret_is_not_ours_to_serve(kube: KubeClient, following: Following) -> None:
    ca = a_ca()

    await kube.create(SECRETS, a_secret("other", **keys_of(a_leaf(ca))))
    await kube.create(SECRETS, a_secret("tls", **keys_of(a_leaf(ca))))
    await following.until_counted(taken=1)


async def test_the_end_of_the_certificate_that_is_served_is_told(
    kube: KubeClient, following: Following
) -> None:
    leaf = a_leaf(a_ca())
    await kube.create(SECRETS, a_secret("tls", **keys_of(leaf)))
    await following.until_counted(taken=1)

    left_s = (not_after(leaf.cert_pem) - following.clock.now()).total_seconds()
    name = "fracgpu_webhook_certificate_expiry_seconds"
    assert following.registry.get_sample_value(name) == left_s


@pytest.mark.parametrize(
    ("begins", "names", "why"),
    [
        (-3 * HOUR, ("localhost",), "certificate has expired"),
        (3 * HOUR, ("localhost",), "certificate is not yet valid"),
        (0 * HOUR, ("elsewhere",), "Hostname mismatch, certificate is not valid for 'localhost'."),
    ],
)
@pytest.mark.parametrize("with_ca", [False, True])
async def test_readyz_fails_with_a_certificate_that_the_api_server_would_refuse(
    kube: KubeClient,
    following: Following,
    begins: timedelta,
    names: tuple[str, ...],
    why: str,
    *,
    with_ca: bool,
) -> None:
    ca = a_ca(life=12 * HOUR)
    leaf = make_serving(ca, names=names, now=now() + begins, life=HOUR)
    data = {**keys_of(leaf), **({"ca_crt": ca.cert_pem} if with_ca else {})}

    await kube.create(SECRETS, a_secret("tls", **data))
    await following.until_counted(taken=1)

    # OpenSSL 3.6 says more of a certificate that is not yet valid.
    assert (following.certificate.problem() or "").startswith(
        f"Secret default/tls: the API server would refuse the certificate at localhost: {why}"
    )


async def test_readyz_fails_with_a_certificate_of_another_authority(
    kube: KubeClient, following: Following
) -> None:
    data = {**keys_of(a_leaf(a_ca())), "ca_crt": a_ca().cert_pem}

    await kube.create(SECRETS, a_secret("tls", **data))
    await following.until_counted(taken=1)

    assert "issuer certificate" in str(following.certificate.problem())


PEM = a_leaf(a_ca()).cert_pem


def test_the_end_of_a_certificate_is_that_of_the_first_in_the_file() -> None:
    chain = PEM + a_ca().cert_pem

    assert not_after(chain) == x509.load_pem_x509_certificate(PEM).not_valid_after_utc


@pytest.mark.filterwarnings("ignore:Parsed a serial number")  # read so far, whatever the number
@example(48, b"+")
@given(st.integers(0, len(PEM)), st.binary(max_size=8))
def test_a_spoilt_certificate_is_read_or_refused_and_nothing_worse(at: int, junk: bytes) -> None:
    with contextlib.suppress(ValueError):
        assert not_after(PEM[:at] + junk + PEM[at + len(junk) :]).tzinfo is UTC


def test_what_is_no_certificate_is_said() -> None:
    with pytest.raises(ValueError, match="no certificate in PEM form"):
        not_after(b"hello")


@pytest.mark.parametrize("following", [True], indirect=True)
async def test_only_callers_whose_certificate_is_of_our_authority_are_heard(
    kube: KubeClient, following: Following
) -> None:
    ca = a_ca()
    data = {**keys_of(a_leaf(ca)), "ca_crt": ca.cert_pem}
    await kube.create(SECRETS, a_secret("tls", **data))
    await following.until_counted(taken=1)

    async with https(following.tls) as url:
        assert await ask(url, trusting(ca.cert_pem, client=a_client(ca))) == "ok"
        for stranger in (None, a_client(a_ca())):
            with pytest.raises((aiohttp.ClientError, OSError)):
                await ask(url, trusting(ca.cert_pem, client=stranger))
