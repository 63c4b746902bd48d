import asyncio
import base64

import pytest

from certs.store import CertStore, StoredSecret
from kube.client import KubeClient
from kube.errors import KubeError
from kube.kinds import SECRETS

NAMESPACE = "fracgpu-system"
DATA = {"tls.crt": b"certificate", "tls.key": b"key", "ca.crt": b"bundle"}


@pytest.fixture
def store(kube: KubeClient) -> CertStore:
    return CertStore(kube, namespace=NAMESPACE)


async def stored(store: CertStore) -> StoredSecret:
    secret = await store.read("fracgpu-ca")
    assert secret is not None
    return secret


async def test_what_is_written_is_read_back_as_a_secret_of_type_tls(
    store: CertStore, kube: KubeClient
) -> None:
    assert await store.read("fracgpu-ca") is None

    assert await store.write("fracgpu-ca", DATA, over=None)

    assert (await stored(store)).data == DATA
    body = await kube.get_object(SECRETS, "fracgpu-ca", namespace=NAMESPACE)
    assert body["type"] == "kubernetes.io/tls"


async def test_of_two_who_create_at_once_exactly_one_wins_and_the_other_adopts(
    store: CertStore,
) -> None:
    async with asyncio.TaskGroup() as group:
        writes = [
            group.create_task(store.write("fracgpu-ca", {**DATA, "tls.key": key}, over=None))
            for key in (b"one", b"two")
        ]

    won = [write.result() for write in writes]
    assert sorted(won) == [False, True]
    assert (await stored(store)).data["tls.key"] == (b"one" if won[0] else b"two")


async def test_a_write_over_something_stale_is_refused(store: CertStore) -> None:
    await store.write("fracgpu-ca", DATA, over=None)
    observed = await stored(store)

    assert await store.write("fracgpu-ca", {**DATA, "tls.key": b"one"}, over=observed)
    assert not await store.write("fracgpu-ca", {**DATA, "tls.key": b"two"}, over=observed)

    assert (await stored(store)).data["tls.key"] == b"one"


async def test_a_write_over_something_deleted_is_refused(
    store: CertStore, kube: KubeClient
) -> None:
    await store.write("fracgpu-ca", DATA, over=None)
    observed = await stored(store)
    await kube.delete(SECRETS, "fracgpu-ca", namespace=NAMESPACE)

    assert not await store.write("fracgpu-ca", DATA, over=observed)


async def test_labels_and_other_values_of_the_secret_stay(
    store: CertStore, kube: KubeClient
) -> None:
    labelled = {"name": "fracgpu-ca", "labels": {"app": "fracgpu"}}
    notes = {"notes": base64.b64encode(b"mine").decode()}
    await kube.create(SECRETS, {"metadata": labelled, "data": notes}, namespace=NAMESPACE)

    assert await store.write("fracgpu-ca", DATA, over=await stored(store))

    after = await stored(store)
    assert after.data == {**DATA, "notes": b"mine"}
    assert after.body["metadata"]["labels"] == {"app": "fracgpu"}


class Answering(KubeClient):
    """A client whose only Secret has the given data."""

    def __init__(self, data: object) -> None:
        self._data = data

    async def get_object(self, *_: object, **__: object) -> dict[str, object]:
        return {"metadata": {"name": "fracgpu-ca"}, "data": self._data}

    async def create(self, *_: object, **__: object) -> dict[str, object]:
        raise KubeError(verb="POST", path="/", status=403, reason="Forbidden", message="no")

    replace = create


async def test_a_refusal_of_the_api_server_is_not_mistaken_for_a_lost_race() -> None:
    store = CertStore(Answering({}), namespace=NAMESPACE)

    with pytest.raises(KubeError, match="403 Forbidden"):
        await store.write("fracgpu-ca", DATA, over=None)
    with pytest.raises(KubeError, match="403 Forbidden"):
        await store.write("fracgpu-ca", DATA, over=await stored(store))


def test_a_stored_secret_never_shows_its_data() -> None:
    secret = StoredSecret(name="x", data={"tls.key": b"hunter2"}, body={"data": "hunter2"})

    assert "hunter2" not in repr(secret)
