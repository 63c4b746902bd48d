import asyncio
from contextlib import AsyncExitStack

import pytest

from certs.authority import Pair
from certs.trust.served_certificates import ServedCertificates
from process.tls import ServingTls
from tests.certs.slices import WithReplicas
from tests.certs.tls_harness import a_ca, a_leaf, https

OLD, NEW = a_ca(), a_ca()


def serving(ca: Pair, *, mutual: bool = False) -> ServingTls:
    leaf = a_leaf(ca, "a-service.svc")  # which is not the address a replica is reached at
    tls = ServingTls(require_client_certificate=mutual)
    client_ca = ca.cert_pem if mutual else None
    tls.replace(cert_pem=leaf.cert_pem, key_pem=leaf.key_pem, client_ca_pem=client_ca)
    return tls


async def all_serve_what_new_signed(urls: dict[str, list[str]] | None) -> bool:
    replicas = ServedCertificates(WithReplicas(None, urls), namespace="x")
    return await replicas.all_serve(["a"], trusting=NEW.cert_pem)


@pytest.mark.parametrize(
    ("signers", "answer"), [([NEW], True), ([NEW, NEW], True), ([NEW, OLD], False), ([], False)]
)
async def test_every_replica_must_show_what_the_new_authority_signed(
    signers: list[Pair], answer: bool
) -> None:
    async with AsyncExitStack() as servers:
        urls = [await servers.enter_async_context(https(serving(ca))) for ca in signers]

        assert await all_serve_what_new_signed({"a": urls}) is answer


async def test_a_replica_that_asks_for_a_client_certificate_is_looked_at_as_well() -> None:
    for ca, answer in ((NEW, True), (OLD, False)):
        async with https(serving(ca, mutual=True)) as url:
            assert await all_serve_what_new_signed({"a": [url]}) is answer


async def test_every_service_counts() -> None:
    async with https(serving(NEW)) as new, https(serving(OLD)) as old:
        replicas = ServedCertificates(WithReplicas(None, {"a": [new], "b": [old]}), namespace="x")

        assert not await replicas.all_serve(["a", "b"], trusting=NEW.cert_pem)


async def test_a_replica_that_cannot_be_reached_may_serve_anything() -> None:
    async with https(serving(NEW)) as gone:
        pass

    assert not await all_serve_what_new_signed({"a": [gone]})


async def test_a_replica_that_speaks_no_tls_may_serve_anything() -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 hello\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        assert not await all_serve_what_new_signed({"a": [f"127.0.0.1:{port}"]})


async def test_without_endpoint_slices_nobody_can_tell() -> None:
    assert not await all_serve_what_new_signed(None)
    assert not await all_serve_what_new_signed({})
