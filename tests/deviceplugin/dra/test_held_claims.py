"""What the pods of a node hold, from their claims in the API server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from deviceplugin.dra.held_claims import HeldClaims
from fracgpu import names
from fracgpu.cards.card import CardUuid
from fracgpu.state.allocation import Slice
from fracgpu.units import Mib
from kube.informer import Change, ChangeType
from kube.objects import ObjectKey
from simulator.background import background
from tests.deviceplugin.builders import NODE, FakeCards, a_card, a_tracker
from tests.deviceplugin.dra.builders import FakeApi, a_claim, a_users_claim, info, pod_body
from tests.fakes.clock import VirtualClock
from tests.support.waiting import until_true

Json = dict[str, Any]

HELD = {"train": (Slice(card=CardUuid("GPU-a"), mib=Mib(1000)),)}


def change(pod: Json, what: ChangeType = ChangeType.ADDED) -> Change[Any]:
    found = info(pod)
    key = ObjectKey(namespace=found.record.namespace, name=found.record.name)
    return Change(type=what, key=key, uid=found.record.uid, resource_version="1", object=found)


@dataclass(slots=True, kw_only=True)
class Rig:
    api: FakeApi
    held: HeldClaims
    clock: VirtualClock

    def assigned(self, pod: Json) -> Any:
        found = self.held.pods.by_uid.get(pod["metadata"]["uid"])
        return found.record.assignment if found is not None else None

    async def sees(self, *pods: Json) -> None:
        """Let the pods be seen, and their claims be read."""
        for pod in pods:
            self.held.observe(change(pod))
        await until_true(lambda: self.held.complete, what="the claims are read")


@asynccontextmanager
async def a_rig(api: FakeApi) -> AsyncIterator[Rig]:
    clock = VirtualClock()
    tracker = a_tracker(FakeCards(a_card("GPU-a"), a_card("GPU-b", index=1)), clock)
    await tracker.refresh()
    held = HeldClaims(
        node=NODE,
        client=api,
        tracker=tracker,
        clock=clock,
        on_change=lambda: None,
    )
    async with background(held.run()):
        yield Rig(api=api, held=held, clock=clock)


async def test_a_pod_that_names_a_volume_alone_is_not_read() -> None:
    pod = pod_body(need=None, uses=[])
    del pod["spec"]["resourceClaims"]
    pod["spec"]["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    async with a_rig(FakeApi()) as rig:
        rig.held.observe(change(pod))

        assert rig.held.complete


async def test_an_agent_that_starts_learns_what_the_pods_hold() -> None:
    pod, other = pod_body(), pod_body("other", claims={names.POD_CLAIM: "fracgpu-1111111111"})
    claims = [a_claim(pod), a_claim(other, name="fracgpu-1111111111", uid="2")]
    async with a_rig(FakeApi(pod, other, claims=claims)) as rig:
        rig.held.observe(change(pod))
        assert not rig.held.complete

        await rig.sees(pod)

        assert rig.assigned(pod) == HELD
        assert len(list(rig.held.claims)) == 1

        known = rig.held.pods.by_uid["uid-train-0"]
        await rig.sees(other)
        await until_true(lambda: rig.assigned(other) == HELD, what="the other's claim is read")
        # Nobody else's cards are looked up: of 256 pods that would take the event loop seconds.
        assert rig.held.pods.by_uid["uid-train-0"] is known
        rig.held.observe(change(other, ChangeType.DELETED))

        rig.held.observe(change(pod, ChangeType.DELETED))
        assert not list(rig.held.claims)


async def test_each_claim_is_read_once() -> None:
    pod = pod_body()
    async with a_rig(FakeApi(pod, claims=[a_claim(pod)])) as rig:
        await rig.sees(pod)
        calls = len(rig.api.calls)

        await rig.sees(pod, pod)

        assert len(rig.api.calls) == calls


async def test_a_claim_of_another_pod_or_of_nobody_is_not_counted() -> None:
    pod, thief = pod_body(), pod_body("thief")
    async with a_rig(FakeApi(pod, thief, claims=[a_claim(pod)])) as rig:
        await rig.sees(thief)
        assert rig.assigned(thief) is None

    async with a_rig(FakeApi(pod)) as rig:
        await rig.sees(pod)
        assert rig.assigned(pod) is None
        assert rig.held.complete


async def test_a_users_own_claim_is_counted_by_the_containers_that_have_it() -> None:
    pod = pod_body(
        need=None,
        claims={"cards": "mine"},
        uses=[("a", "cards", "first"), ("b", "cards", "second")],
    )
    async with a_rig(FakeApi(pod, claims=[a_users_claim(pod)])) as rig:
        await rig.sees(pod)

        assert rig.assigned(pod) == {
            "a": (Slice(card=CardUuid("GPU-a"), mib=Mib(3000)),),
            "b": (Slice(card=CardUuid("GPU-b"), mib=Mib(3000)),),
        }


async def test_of_two_pods_that_a_users_claim_is_reserved_for_the_first_has_its_cards() -> None:
    """So before the agent was started anew, which may see them in another order."""
    pods = [
        pod_body(name, need=None, claims={"cards": "mine"}, uses=[("a", "cards", "first")])
        for name in ("first", "second")
    ]
    claim = a_users_claim(pods[0])
    claim["status"]["reservedFor"] += a_users_claim(pods[1])["status"]["reservedFor"]
    async with a_rig(FakeApi(*pods, claims=[claim])) as rig:
        await rig.sees(pods[1])
        assert rig.assigned(pods[1]) is None

        rig.held.observe(change(pods[0]))
        await until_true(lambda: "uid-first" in rig.held.settled, what="its claim is read")

        assert rig.assigned(pods[0]) == {"a": (Slice(card=CardUuid("GPU-a"), mib=Mib(3000)),)}


async def test_a_claim_that_was_deleted_under_a_pod_does_not_hide_its_others() -> None:
    pod = pod_body(
        need=None,
        claims={"net": "gone", "cards": "mine"},
        uses=[("a", "net", ""), ("a", "cards", "first")],
    )
    async with a_rig(FakeApi(pod, claims=[a_users_claim(pod)])) as rig:
        await rig.sees(pod)

        assert rig.assigned(pod) == {"a": (Slice(card=CardUuid("GPU-a"), mib=Mib(3000)),)}


async def test_while_the_api_server_is_away_the_pods_are_not_known() -> None:
    pod = pod_body()
    async with a_rig(FakeApi(pod, claims=[a_claim(pod)])) as rig:
        rig.api.down = True
        rig.held.observe(change(pod))
        await rig.clock.wait_for_sleepers(1)
        assert not rig.held.complete

        rig.api.down = False
        await rig.clock.advance(1)
        await until_true(lambda: rig.held.complete, what="the claim is read")

        assert rig.assigned(pod) == HELD


async def test_one_pod_whose_claim_is_unread_does_not_hold_up_the_others() -> None:
    pod, late = pod_body(), pod_body("late")
    async with a_rig(FakeApi(pod, claims=[a_claim(pod)])) as rig:
        await rig.sees(pod)
        rig.api.down = True

        rig.held.observe(change(late))
        await rig.clock.wait_for_sleepers(1)

        assert rig.held.complete
        assert set(rig.held.settled) == {"uid-train-0"}


async def test_a_pod_that_ends_while_its_claim_is_read_holds_nothing() -> None:
    pod = pod_body()
    async with a_rig(FakeApi(pod, claims=[a_claim(pod)])) as rig:
        rig.api.down = True
        rig.held.observe(change(pod))
        await rig.clock.wait_for_sleepers(1)

        rig.held.observe(change(pod_body(phase="Succeeded"), ChangeType.MODIFIED))
        rig.api.down = False
        await rig.clock.advance(1)

        assert rig.held.complete
        assert not list(rig.held.claims)
