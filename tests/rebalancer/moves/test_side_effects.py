"""What a move writes to pods, with preconditions, and what the answers mean."""

from dataclasses import replace

import pytest

from fracgpu import names
from fracgpu.state.move_object import Move
from kube.client import KubeClient
from kube.errors import Conflict, KubeError, error_from_status
from kube.kinds import PODS
from rebalancer.moves.side_effects import SideEffects, judge_write
from rebalancer.moves.steps import (
    DELETION_COST,
    Action,
    EvictionOutcome,
    MoveFacts,
    OwnerFacts,
    ReplacementFacts,
    StepContext,
    VictimFacts,
)
from tests.fakes.clock import NOON
from tests.support.moving import HASH, NAMESPACE, make_cluster
from tests.support.rebalancing import ACTIVE, a_disruption_state, a_move
from tests.support.records import a_record

CONTEXT = StepContext(
    state=a_disruption_state(), nodes={}, policy=replace(ACTIVE, notice_s=90), now=NOON
)


class World:
    """Pod pod-a of a cluster, and the side effects on it."""

    def __init__(self, kube: KubeClient, record: Move) -> None:
        self.kube, self.record = kube, record
        self.may_write = True
        self.effects = SideEffects(kube.guarded(self._guard))

    def _guard(self) -> None:
        if not self.may_write:
            raise PermissionError

    async def pod(self, name: str = "pod-a") -> dict[str, dict[str, str]]:
        found = await self.kube.get_object(PODS, name, namespace=NAMESPACE)
        metadata: dict[str, dict[str, str]] = found["metadata"]
        return metadata

    async def facts(self, *, version: str = "") -> MoveFacts:
        pod = await self.pod()
        victim = VictimFacts(
            there=True,
            hash_label=pod["labels"]["pod-template-hash"],
            moved_by=pod["annotations"].get(names.MOVED_BY, ""),
            notice=pod["annotations"].get(names.NOTICE, ""),
            version=version or str(pod["resourceVersion"]),
        )
        return MoveFacts(victim=victim, owner=OwnerFacts(there=True))

    async def do(self, action: Action, facts: MoveFacts | None = None) -> EvictionOutcome:
        facts = facts or await self.facts()
        result = await self.effects.perform(action, self.record, facts, CONTEXT)
        return result.outcome


@pytest.fixture
async def world(kube: KubeClient) -> World:
    await make_cluster(kube)
    pod = await kube.get_object(PODS, "pod-a", namespace=NAMESPACE)
    move = a_move(pod_uid=pod["metadata"]["uid"], name="pod-a", namespace=NAMESPACE)
    return World(kube, a_record(move=move))


async def test_a_pod_is_released_and_gets_back_exactly_what_it_had(world: World) -> None:
    before = await world.pod()

    assert await world.do(Action.RELEASE) is EvictionOutcome.ALLOWED
    released = await world.pod()
    assert released["labels"]["pod-template-hash"] == f"{HASH}.moved"
    assert released["annotations"][names.MOVED_BY] == world.record.name
    assert await world.do(Action.RESTORE) is EvictionOutcome.ALLOWED
    restored = await world.pod()
    assert restored["labels"] == before["labels"]
    assert names.MOVED_BY in restored["annotations"]  # until it has its controller again
    assert await world.do(Action.UNMARK) is EvictionOutcome.ALLOWED

    after = await world.pod()
    assert (after["labels"], after["annotations"]) == (before["labels"], before["annotations"])


async def test_a_pod_that_changed_since_it_was_read_is_read_again(world: World) -> None:
    stale = await world.facts(version="1")

    assert await world.do(Action.RELEASE, stale) is EvictionOutcome.UNCLEAR

    assert names.MOVED_BY not in (await world.pod())["annotations"]


async def test_the_preflight_changes_nothing(world: World) -> None:
    before = await world.pod()

    assert await world.do(Action.PREFLIGHT) is EvictionOutcome.ALLOWED

    assert await world.pod() == before


async def test_a_notice_says_when_and_what_the_pod_said_to_an_earlier_one_is_over(
    kube: KubeClient, world: World
) -> None:
    said = {"metadata": {"annotations": {names.MOVE_READY: "true"}}}
    await kube.patch(PODS, "pod-a", said, namespace=NAMESPACE)
    assert await world.do(Action.NOTICE) is EvictionOutcome.ALLOWED

    notes = (await world.pod())["annotations"]
    assert notes[names.NOTICE] == "2026-01-05T12:01:30Z"
    assert names.MOVE_READY not in notes


async def test_a_withdrawal_changes_the_pod_each_time_so_that_no_older_eviction_takes_effect(
    world: World,
) -> None:
    versions = [await world.pod()]
    for _ in range(3):
        assert await world.do(Action.WITHDRAW) is EvictionOutcome.ALLOWED
        versions.append(await world.pod())

    assert len({str(pod["resourceVersion"]) for pod in versions}) == len(versions)
    assert versions[1]["annotations"][names.NOTICE] == names.NOTICE_WITHDRAWN
    for pod in versions[:-1]:
        with pytest.raises(Conflict):
            await world.kube.evict(
                namespace=NAMESPACE,
                name="pod-a",
                uid=str(pod["uid"]),
                version=str(pod["resourceVersion"]),
            )
    assert "deletionTimestamp" not in await world.pod()


async def test_the_replacement_becomes_the_first_to_delete(world: World) -> None:
    other = await world.pod("pod-b")
    found = ReplacementFacts(name="pod-b", uid=str(other["uid"]))
    facts = replace(await world.facts(), replacement=found)

    assert await world.do(Action.DEMOTE, facts) is EvictionOutcome.ALLOWED
    assert (await world.pod("pod-b"))["annotations"][DELETION_COST] == "-2147483648"

    another = replace(facts, replacement=replace(found, uid="another"))
    assert await world.do(Action.DEMOTE, another) is EvictionOutcome.UNCLEAR
    assert await world.do(Action.DEMOTE) is EvictionOutcome.ALLOWED  # there is none


def an_error(status: int, reason: str = "") -> KubeError:
    return error_from_status(verb="PATCH", path="/x", status=status, reason=reason, message="m")


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (404, EvictionOutcome.GONE),
        (409, EvictionOutcome.UNCLEAR),
        (422, EvictionOutcome.UNCLEAR),
        (403, EvictionOutcome.REFUSED),
        (429, EvictionOutcome.BUSY),
        (503, EvictionOutcome.UNCLEAR),
        (500, EvictionOutcome.UNCLEAR),
    ],
)
def test_what_an_error_of_a_patch_means(status: int, outcome: EvictionOutcome) -> None:
    assert judge_write(an_error(status)).outcome is outcome
