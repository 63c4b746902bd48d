"""The store of Moves: written through, each locked, and never half parsed."""

import pytest

from fracgpu.state.move_object import MovePhase
from kube.client import KubeClient
from kube.errors import Conflict, NotFound
from kube.kinds import CUSTOM_RESOURCE_DEFINITIONS, MOVES
from rebalancer.moves.record import MoveRecord
from rebalancer.moves.store import MoveStore, MovesUnreadable
from simulator.demo.definitions import install_definitions
from tests.fakes.clock import NOON
from tests.support.records import a_record

RECORD = a_record()


@pytest.fixture
async def store(kube: KubeClient) -> MoveStore:
    await install_definitions(kube)
    return another(kube)


def another(kube: KubeClient) -> MoveStore:
    return MoveStore(kube, guard=lambda: None)


def same(one: MoveRecord, other: MoveRecord) -> bool:
    return (one.id, one.spec, one.status) == (other.id, other.spec, other.status)


async def test_what_is_put_is_read_by_the_next_process(kube: KubeClient, store: MoveStore) -> None:
    await store.load()
    assert store.records == ()
    stored = await store.put(RECORD)
    reserved = stored.to(MovePhase.RESERVED, now=NOON)
    await store.put(reserved)

    second = another(kube)
    await second.load()

    (found,) = second.records
    assert same(found, reserved)
    shown = await kube.get_object(MOVES, RECORD.id)
    assert shown["status"]["phase"] == "Reserved"


async def test_the_phase_is_shown_from_the_beginning(kube: KubeClient, store: MoveStore) -> None:
    await store.put(RECORD)

    shown = await kube.get_object(MOVES, RECORD.id)

    assert shown["status"]["phase"] == "Planned"


async def test_a_writer_that_did_not_see_the_last_write_conflicts(
    kube: KubeClient, store: MoveStore
) -> None:
    await store.put(RECORD)
    second = another(kube)
    await second.load()
    await second.put(second.records[0].to(MovePhase.RESERVED, now=NOON))

    with pytest.raises(Conflict):
        await store.put(store.records[0].to(MovePhase.RESERVED, now=NOON))
    with pytest.raises(Conflict):  # neither may a name be taken twice
        await another(kube).put(RECORD)
    await store.load()
    await store.put(store.records[0].to(MovePhase.NOTICED, now=NOON))


async def test_a_status_of_another_version_is_not_taken_for_none(
    kube: KubeClient, store: MoveStore
) -> None:
    stored = await store.put(RECORD)
    definition = await kube.get_object(CUSTOM_RESOURCE_DEFINITIONS, "moves.fracgpu.io")
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    schema["properties"]["phase"]["enum"].append("Teleporting")
    await kube.replace(CUSTOM_RESOURCE_DEFINITIONS, definition)
    patch = {"status": {"phase": "Teleporting"}}
    await kube.patch(MOVES, stored.id, patch, subresource="status")

    with pytest.raises(MovesUnreadable, match=f"Move {stored.id}: .*; delete it to forget it"):
        await another(kube).load()


async def test_without_the_definition_nothing_is_known_of_past_moves(kube: KubeClient) -> None:
    with pytest.raises(
        MovesUnreadable, match=r"CustomResourceDefinition moves\.fracgpu\.io is not"
    ):
        await another(kube).load()


async def test_a_move_that_somebody_deleted_is_forgotten(
    kube: KubeClient, store: MoveStore
) -> None:
    stored = await store.put(RECORD)
    await kube.delete(MOVES, RECORD.id)

    with pytest.raises(NotFound):
        await store.put(stored.to(MovePhase.RESERVED, now=NOON))
    await store.load()

    assert store.records == ()


async def test_a_forgotten_move_is_gone(kube: KubeClient, store: MoveStore) -> None:
    stored = await store.put(RECORD)

    await store.forget(stored)
    await store.forget(stored)  # somebody else was quicker

    assert store.records == ()
    with pytest.raises(NotFound):
        await kube.get(MOVES, RECORD.id)


async def test_nothing_is_written_where_the_guard_objects(
    kube: KubeClient, store: MoveStore
) -> None:
    def guard() -> None:
        raise PermissionError

    stored = await store.put(RECORD)
    guarded = MoveStore(kube, guard=guard)
    await guarded.load()

    for write in (guarded.put, guarded.forget):
        with pytest.raises(PermissionError):
            await write(stored)
    (found,) = guarded.records
    assert same(found, stored)
