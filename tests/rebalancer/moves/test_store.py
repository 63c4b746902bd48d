"""The move store in its ConfigMap: written through, locked, and never half parsed."""

import pytest

from fracgpu import names
from kube.client import KubeClient
from kube.errors import Conflict
from kube.kinds import CONFIGMAPS, NAMESPACES
from rebalancer.moves.record import MovePhase, plan_record
from rebalancer.moves.store import NAME, MoveStore, MovesUnreadable
from tests.fakes.clock import NOON
from tests.support.rebalancing import a_move

RECORD = plan_record(a_move(), policy="abc", dry_run=False, now=NOON)


@pytest.fixture
async def store(kube: KubeClient) -> MoveStore:
    await kube.create(NAMESPACES, {"metadata": {"name": names.SYSTEM_NAMESPACE}})
    return another(kube)


def another(kube: KubeClient) -> MoveStore:
    return MoveStore(kube, namespace=names.SYSTEM_NAMESPACE, guard=lambda: None)


async def test_what_is_put_is_read_by_the_next_process(kube: KubeClient, store: MoveStore) -> None:
    await store.load()
    assert store.records == ()
    await store.put(RECORD, now=NOON)
    await store.put(RECORD.to(MovePhase.EVICTING, now=NOON), now=NOON)

    second = another(kube)
    await second.load()

    assert second.records == (RECORD.to(MovePhase.EVICTING, now=NOON),)


async def test_a_writer_that_did_not_see_the_last_write_conflicts(
    kube: KubeClient, store: MoveStore
) -> None:
    second = another(kube)
    await store.load()
    await second.load()
    await store.put(RECORD, now=NOON)

    with pytest.raises(Conflict):
        await second.put(RECORD, now=NOON)
    await second.load()
    await second.put(RECORD.to(MovePhase.EVICTING, now=NOON), now=NOON)
    with pytest.raises(Conflict):
        await store.put(RECORD, now=NOON)


@pytest.mark.parametrize("text", ["no JSON", "[]", '{"version": 7, "moves": []}'])
async def test_an_unreadable_store_is_not_taken_for_an_empty_one(
    kube: KubeClient, store: MoveStore, text: str
) -> None:
    body = {
        "metadata": {"name": NAME, "namespace": names.SYSTEM_NAMESPACE},
        "data": {"moves": text},
    }
    await kube.create(CONFIGMAPS, body)

    with pytest.raises(MovesUnreadable, match="delete it to forget all past moves"):
        await store.load()


async def test_a_deleted_store_is_begun_anew(kube: KubeClient, store: MoveStore) -> None:
    await store.load()
    await store.put(RECORD, now=NOON)
    await kube.delete(CONFIGMAPS, NAME, namespace=names.SYSTEM_NAMESPACE)

    await store.load()
    assert list(store.records) == []
    await store.put(RECORD, now=NOON)

    assert store.records == (RECORD,)


async def test_what_others_keep_in_the_config_map_stays(kube: KubeClient, store: MoveStore) -> None:
    await store.load()
    await store.put(RECORD, now=NOON)
    patch = {"metadata": {"labels": {"team": "ml"}}}
    await kube.patch(CONFIGMAPS, NAME, patch, namespace=names.SYSTEM_NAMESPACE)

    await store.load()
    await store.put(RECORD, now=NOON)

    found = await kube.get_object(CONFIGMAPS, NAME, namespace=names.SYSTEM_NAMESPACE)
    assert found["metadata"]["labels"] == {"team": "ml"}


async def test_nothing_is_written_where_the_guard_objects(
    kube: KubeClient, store: MoveStore
) -> None:
    def guard() -> None:
        raise PermissionError

    with pytest.raises(PermissionError):
        await MoveStore(kube, namespace=names.SYSTEM_NAMESPACE, guard=guard).put(RECORD, now=NOON)
    await store.load()
    assert store.records == ()
