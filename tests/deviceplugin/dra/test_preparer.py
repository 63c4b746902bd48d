"""A claim whose pod starts: a spec for each container, or a sentence that says why not."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from prometheus_client import CollectorRegistry

from component.wiring import Wiring
from deviceplugin.cards.interface import CardList, DeviceNode
from deviceplugin.claims import Claim
from deviceplugin.container.cdi import ABSENT, CdiError, CdiFolder, CdiSpec
from deviceplugin.dra.held_claims import HeldClaim, HeldClaims
from deviceplugin.dra.preparer import Preparer
from deviceplugin.dra.server import ClaimName, PreparedDevice, PrepareError
from deviceplugin.enforcement.limiter import Limiter
from deviceplugin.metrics import DevicePluginMetrics
from deviceplugin.node_wiring import held_by
from fracgpu import names
from fracgpu.cards.card import Card, CardUuid
from fracgpu.device_claims.claim import decode_claim
from fracgpu.state.allocation import Slice, write_assignment
from fracgpu.units import Mib
from kube.informer import ChangeType
from tests.deviceplugin.builders import (
    NODE,
    VANISHING,
    FakeCards,
    Tracker,
    a_card,
    a_spec_builder,
    a_tracker,
    facts,
)
from tests.deviceplugin.dra.builders import (
    CLAIM,
    UID,
    FakeApi,
    a_claim,
    a_users_claim,
    info,
    pod_body,
)
from tests.deviceplugin.dra.test_held_claims import change
from tests.deviceplugin.enforcement.builders import a_limited_node
from tests.deviceplugin.identity.test_starts import no_limits
from tests.deviceplugin.kubelet.test_pre_start import FakeRuntime
from tests.fakes.clock import VirtualClock
from tests.support.core import a_need, a_pod_need
from tests.support.waiting import until

Json = dict[str, Any]

TWO = (a_card("GPU-a"), a_card("GPU-b", index=1))
OTHER = "99999999-2222-3333-4444-555555555555"


def held_before(claim: Json, pod: Json) -> dict[str, Any]:
    """Return what an agent that starts reads of a claim."""
    seen = info(pod)
    return {
        "claim": decode_claim(json.dumps(claim).encode()),
        "pod": seen.record.uid,
        "use": seen.claim_uses[claim["metadata"]["name"]],
    }


def named(name: str = CLAIM, uid: str = UID) -> ClaimName:
    return ClaimName(namespace="ml", name=name, uid=uid)


@dataclass(slots=True, kw_only=True)
class Rig:
    api: FakeApi
    preparer: Preparer
    held: HeldClaims
    tracker: Tracker
    cards: FakeCards
    runtime: FakeRuntime
    clock: VirtualClock
    folder: Path
    registry: CollectorRegistry
    prepared: list[tuple[Claim, str]]
    known: list[bool]

    def sees(self, *pods: Json, gone: bool = False) -> None:
        for pod in pods:
            self.held.observe(change(pod, ChangeType.DELETED if gone else ChangeType.ADDED))

    def specs(self) -> dict[str, Json]:
        found = {}
        for file in self.folder.glob("*.json"):
            (device,) = json.loads(file.read_text())["devices"]
            found[device["name"]] = device["containerEdits"]
        return found

    def env(self, request: str) -> dict[str, str]:
        lines = self.specs()[f"{UID}_{request}"]["env"]
        return dict(line.split("=", 1) for line in lines)

    async def refusal(self, claim: ClaimName | None = None) -> str:
        with pytest.raises(PrepareError) as caught:
            await self.preparer.prepare(claim or named())
        return str(caught.value)

    @asynccontextmanager
    async def asked(self, claim: ClaimName | None = None) -> AsyncIterator["asyncio.Task[str]"]:
        """Ask for a claim in the background; the task's result is the refusal, if it is one."""

        async def ask() -> str:
            try:
                await self.preparer.prepare(claim or named())
            except PrepareError as error:
                return str(error)
            return ""

        async with asyncio.TaskGroup() as group:
            yield group.create_task(ask(), name="ask")

    async def outcome(self, task: "asyncio.Task[str]") -> str:
        """Let time pass until a claim is answered; return its refusal."""

        async def answered() -> bool:
            await self.clock.advance(1)
            return task.done()

        await until(answered, what="an answer")
        return task.result()

    def starts(self, outcome: str) -> float:
        sample = "fracgpu_deviceplugin_starts_total"
        return self.registry.get_sample_value(sample, {"outcome": outcome}) or 0


async def a_rig(
    folder: Path,
    *pods: Json,
    claims: Sequence[Json],
    cards: Sequence[Card] = TWO,
    limiter: Limiter | None = None,
    why_not_limited: str | None = "it needs NRI in the container runtime",
) -> Rig:
    api, clock, fake = FakeApi(*pods, claims=claims), VirtualClock(), FakeCards(*cards)
    registry, runtime = CollectorRegistry(), FakeRuntime()
    tracker = a_tracker(fake, clock)
    await tracker.refresh()
    held = HeldClaims(node=NODE, client=api, tracker=tracker, clock=clock, on_change=lambda: None)
    prepared: list[tuple[Claim, str]] = []
    known = [True]
    preparer = Preparer(
        node=NODE,
        client=api,
        held=held,
        held_by_slots=lambda: held_by(Wiring.DEVICE_PLUGIN, held.pods.by_uid),
        pods=lambda: held.pods.by_uid if known[0] else None,
        tracker=tracker,
        runtime=runtime,
        builder=a_spec_builder(),
        limiter=limiter or no_limits(),
        why_not_limited=lambda: why_not_limited,
        specs=CdiFolder(folder),
        clock=clock,
        metrics=DevicePluginMetrics(registry),
        on_prepared=lambda claim, by: prepared.append((claim, by)),
    )
    rig = Rig(
        api=api,
        preparer=preparer,
        held=held,
        tracker=tracker,
        cards=fake,
        runtime=runtime,
        clock=clock,
        folder=folder,
        registry=registry,
        prepared=prepared,
        known=known,
    )
    rig.sees(*pods)
    return rig


@VANISHING
async def test_a_container_whose_card_vanishes_while_it_starts_is_refused_or_gets_it(
    tmp_path: Path, looks: int
) -> None:
    pod = pod_body()
    rig = await a_rig(tmp_path, pod, claims=[a_claim(pod)])
    rig.tracker.looks = looks

    async with rig.asked() as task:
        refusal = await rig.outcome(task)

    assert bool(refusal) != bool(rig.specs())


async def test_a_container_gets_what_its_request_was_allocated(tmp_path: Path) -> None:
    pod = pod_body()
    rig = await a_rig(tmp_path, pod, claims=[a_claim(pod, {"train": ["GPU-b"]})])

    devices = await rig.preparer.prepare(named())

    cdi = (f"{names.CDI_KIND}={UID}_train",)
    assert devices == [PreparedDevice(request="train", pool=NODE, device="gpu-b", cdi=cdi)]
    env = rig.env("train")
    assert (env[names.ENV_VISIBLE_DEVICES], env[names.ENV_MEM_MIB]) == ("GPU-b", "1000")
    assert rig.specs()[f"{UID}_train"]["deviceNodes"] == [{"path": "/dev/nvidia1"}]
    assert rig.starts("wired") == 1
    ((claim, by),) = rig.prepared
    assert (claim.container, claim.pod.record.name, by) == ("train", "train-0", "none")
    assert [each.uid for each in rig.held.claims] == [UID]


async def listed_anew(rig: Rig, *cards: Card) -> None:
    """List other cards, with the device files that a driver gives them in this order."""
    rig.cards.answer = CardList(
        cards=tuple(
            replace(facts(card), device_nodes=(DeviceNode(path=f"/dev/nvidia{at}"),))
            for at, card in enumerate(cards)
        )
    )
    await rig.tracker.refresh()


async def test_a_spec_refuses_its_container_while_its_card_is_away_or_unhealthy_and_then_follows_it(
    tmp_path: Path,
) -> None:
    pod = pod_body()
    rig = await a_rig(tmp_path, pod, claims=[a_claim(pod)])
    await rig.preparer.prepare(named())
    name, refused = f"{UID}_train", []

    for cards in ((TWO[1],), (a_card("GPU-a", unhealthy="XID 79"), TWO[1])):
        await listed_anew(rig, *cards)
        assert not await rig.preparer.renew()
        assert "deviceNodes" not in rig.specs()[name]
        refused.append(rig.specs()[name]["mounts"][0]["hostPath"])
    await listed_anew(rig, *reversed(TWO))
    assert await rig.preparer.renew()

    assert refused == [
        "/run/fracgpu/refused/ResourceClaim-ml-fracgpu-0123456789-has-device-gpu-a-which-is-no-card-of-gpu-1",
        "/run/fracgpu/refused/card-GPU-a-is-unhealthy-XID-79",
    ]
    assert rig.specs()[name]["deviceNodes"] == [{"path": "/dev/nvidia1"}]
    assert rig.starts("wired") == 1


class Full(CdiFolder):
    """A folder on a disk without room."""

    def _write(self, spec: CdiSpec) -> bool:
        raise CdiError(f"cannot write {spec.name}: No space left on device")


async def test_where_no_spec_can_be_written_the_old_one_gives_no_other_card(tmp_path: Path) -> None:
    pod = pod_body()
    rig = await a_rig(tmp_path, pod, claims=[a_claim(pod)])
    await rig.preparer.prepare(named())

    await listed_anew(rig, *reversed(TWO))
    rig.preparer._specs = Full(tmp_path)
    assert not await rig.preparer.renew()
    assert rig.specs() == {}

    rig.preparer._specs = CdiFolder(tmp_path)
    assert await rig.preparer.renew()
    assert rig.specs()[f"{UID}_train"]["deviceNodes"] == [{"path": "/dev/nvidia1"}]


async def test_a_container_is_not_restarted_without_what_has_limited_it(tmp_path: Path) -> None:
    note = {"train": {"cards": ["GPU-a"], "isolation": "mps"}}
    pod = pod_body(annotations={names.WIRED: json.dumps(note)})
    rig = await a_rig(tmp_path, pod, claims=[a_claim(pod)])
    await rig.preparer.prepare(named())  # while it could be limited

    assert not await rig.preparer.renew()

    (mount,) = rig.specs()[f"{UID}_train"]["mounts"]
    assert "cannot-be-limited-by-mps" in mount["hostPath"]


async def test_specs_that_somebody_removed_are_written_again_unless_kubelet_gave_them_back(
    tmp_path: Path,
) -> None:
    pod, later = pod_body(), pod_body("later", claims={names.POD_CLAIM: "fracgpu-1111111111"})
    waits = a_claim(later, name="fracgpu-1111111111", uid=OTHER)
    rig = await a_rig(tmp_path / "cdi", pod, later, claims=[a_claim(pod), waits])
    rig.held.add(HeldClaim(**held_before(waits, later), prepared=False))
    await rig.preparer.prepare(named())

    shutil.rmtree(tmp_path / "cdi")
    assert await rig.preparer.renew()
    assert list(rig.specs()) == [f"{UID}_train"]  # kubelet has not asked for the other one yet

    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(rig.preparer.renew())
            group.create_task(rig.preparer.unprepare(named()))
    assert rig.specs() == {}


async def test_a_container_that_was_promised_limits_is_never_given_its_card_by_the_spec(
    tmp_path: Path,
) -> None:
    pod = pod_body(annotations=WANTS_KERNEL)
    limiter = a_limited_node(tmp_path).limiter
    rig = await a_rig(
        tmp_path / "cdi", pod, claims=[a_claim(pod)], limiter=limiter, why_not_limited=None
    )
    await rig.preparer.prepare(named())
    closed = rig.specs()

    for cards in (reversed(TWO), ()):  # also while its card is away: the runtime asks
        await listed_anew(rig, *cards)
        await rig.preparer.renew()

        assert rig.specs() == closed


async def test_kubelet_may_ask_again_and_the_answer_is_the_same(tmp_path: Path) -> None:
    pod = pod_body()
    rig = await a_rig(tmp_path, pod, claims=[a_claim(pod)])

    first = await rig.preparer.prepare(named())

    assert await rig.preparer.prepare(named()) == first
    assert len(rig.specs()) == 1


async def test_several_cards_of_a_container_have_one_spec(tmp_path: Path) -> None:
    need = a_pod_need(a_need(1000, name="train", cards=2), a_need(500, name="side"))
    pod = pod_body(need=need)
    cards = {"train": ["GPU-a", "GPU-b"], "side": ["GPU-b"]}
    rig = await a_rig(tmp_path, pod, claims=[a_claim(pod, cards, need=need)])

    devices = await rig.preparer.prepare(named())

    found = [(each.request, each.device, len(each.cdi)) for each in devices]
    assert found == [("train", "gpu-a", 1), ("train", "gpu-b", 0), ("side", "gpu-b", 1)]
    assert rig.env("train")[names.ENV_VISIBLE_DEVICES] == "GPU-a,GPU-b"
    assert rig.env("train")[names.ENV_MEM_MIB] == "1000,1000"
    assert rig.env("side")[names.ENV_VISIBLE_DEVICES] == "GPU-b"


async def test_two_containers_with_equal_shares_of_a_card_are_both_told(tmp_path: Path) -> None:
    need = a_pod_need(a_need(1000, name="a"), a_need(1000, name="b"))
    pod = pod_body(need=need)
    claim = a_claim(pod, {"a": ["GPU-b"], "b": ["GPU-b"]}, need=need)
    rig = await a_rig(tmp_path, pod, claims=[claim])

    await rig.preparer.prepare(named())

    assert [(claim.container, by) for claim, by in rig.prepared] == [("a", "none"), ("b", "none")]


async def test_what_was_prepared_is_removed_by_uid_though_the_claim_is_gone(tmp_path: Path) -> None:
    pod = pod_body()
    rig = await a_rig(tmp_path, pod, claims=[a_claim(pod)])
    await rig.preparer.prepare(named())
    CdiFolder(tmp_path).write(CdiSpec(name=f"{OTHER}_train"))
    del rig.api.objects["ResourceClaim", CLAIM]

    await rig.preparer.unprepare(named())
    await rig.preparer.unprepare(named())

    assert list(rig.specs()) == [f"{OTHER}_train"]
    assert not list(rig.held.claims)


async def test_an_agent_without_memory_removes_what_another_one_prepared(tmp_path: Path) -> None:
    CdiFolder(tmp_path).write(CdiSpec(name=f"{UID}_train"))
    rig = await a_rig(tmp_path, claims=[])

    await rig.preparer.unprepare(named())

    assert rig.specs() == {}


async def test_a_claim_that_a_user_made_before_is_refused_at_once(tmp_path: Path) -> None:
    pod = pod_body()
    claim = a_claim(pod)
    del claim["metadata"]["ownerReferences"]
    rig = await a_rig(tmp_path, pod, claims=[claim])

    assert "someone made it under that name before" in await rig.refusal()

    assert (rig.specs(), list(rig.held.claims), rig.clock.monotonic()) == ({}, [], 0)
    assert rig.starts("claim_refused") == 1


async def test_a_claim_that_is_reserved_for_a_pod_that_does_not_name_it_is_refused_at_once(
    tmp_path: Path,
) -> None:
    pod = pod_body(need=None, claims={"cards": "other"}, uses=[("a", "cards", "first")])
    rig = await a_rig(tmp_path, pod, claims=[a_users_claim(pod)])

    assert "pod train-0 does not name claim mine" in await rig.refusal(named("mine"))

    assert (list(rig.held.claims), rig.clock.monotonic()) == ([], 0)


@pytest.mark.parametrize(
    ("claims", "text"),
    [([], "is gone"), ([OTHER], f"is another one now, with UID {OTHER}")],
)
async def test_a_claim_that_is_gone_is_not_waited_for(
    tmp_path: Path, claims: Sequence[str], text: str
) -> None:
    pod = pod_body()
    rig = await a_rig(tmp_path, pod, claims=[a_claim(pod, uid=uid) for uid in claims])

    assert text in await rig.refusal()


async def test_a_pod_that_reaches_the_agent_late_is_waited_for(tmp_path: Path) -> None:
    pod = pod_body()
    rig = await a_rig(tmp_path, claims=[a_claim(pod)])
    rig.api.put("Pod", pod)
    async with rig.asked() as waiting:
        await rig.clock.wait_for_sleepers(1)

        rig.sees(pod)

        assert await rig.outcome(waiting) == ""
    assert list(rig.specs()) == [f"{UID}_train"]


async def test_a_pod_that_never_comes_is_said_before_kubelet_gives_up(tmp_path: Path) -> None:
    rig = await a_rig(tmp_path, claims=[a_claim(pod_body())])
    async with rig.asked() as waiting:
        assert "pod train-0" in await rig.outcome(waiting)

    assert 20 < rig.clock.monotonic() < 45


async def test_what_the_last_pod_still_holds_is_waited_for(tmp_path: Path) -> None:
    need = a_pod_need(a_need(5000, name="train"))
    old, new = (
        pod_body("old", need=need),
        pod_body("new", need=need, claims={"fracgpu": "fracgpu-b"}),
    )
    claims = [
        a_claim(old, need=need),
        a_claim(new, need=need, name="fracgpu-b", uid=OTHER),
    ]
    rig = await a_rig(tmp_path, old, new, claims=claims)
    await rig.preparer.prepare(named())
    async with rig.asked(named("fracgpu-b", OTHER)) as waiting:
        await rig.clock.wait_for_sleepers(1)
        assert not waiting.done()

        await rig.preparer.unprepare(named())

        assert await rig.outcome(waiting) == ""

    async with rig.asked() as waiting:
        assert "would hold 10000 MiB" in await rig.outcome(waiting)


async def test_what_a_pod_holds_by_slots_is_waited_for_since_no_claim_counts_it(
    tmp_path: Path,
) -> None:
    pod = pod_body(need=(need := a_pod_need(a_need(6000, name="train"))))
    part = Slice(card=CardUuid("GPU-a"), mib=Mib(6000))
    slots = pod_body("slots", need=None, phase="Running")
    del slots["spec"]["resourceClaims"]
    slots["metadata"]["annotations"] = {names.ASSIGNMENT: write_assignment({"train": (part,)})}
    rig = await a_rig(tmp_path, pod, slots, claims=[a_claim(pod, need=need)])
    async with rig.asked() as waiting:
        said = await rig.outcome(waiting)
    assert "pods of wiring devicePlugin still hold cards: ml/slots" in said
    assert (rig.specs(), list(rig.held.claims)) == ({}, [])

    async with rig.asked() as waiting:
        await rig.clock.wait_for_sleepers(1)
        rig.sees(slots, gone=True)
        assert await rig.outcome(waiting) == ""


async def test_an_api_server_that_is_away_for_a_moment_is_waited_for(tmp_path: Path) -> None:
    pod = pod_body()
    rig = await a_rig(tmp_path, pod, claims=[a_claim(pod)])
    rig.api.down = True
    async with rig.asked() as waiting:
        await rig.clock.wait_for_sleepers(1)
        rig.api.down = False
        assert await rig.outcome(waiting) == ""

    rig.api.down = True
    async with rig.asked() as waiting:
        assert "cannot be read: no answer from kube-apiserver" in await rig.outcome(waiting)


async def test_nothing_is_decided_before_the_pods_and_their_claims_are_known(
    tmp_path: Path,
) -> None:
    pod = pod_body()
    rig = await a_rig(tmp_path, pod, claims=[a_claim(pod)])
    rig.known[0] = False
    async with rig.asked() as waiting:
        assert "are not all known yet" in await rig.outcome(waiting)


async def test_a_card_that_is_unhealthy_by_now_is_refused(tmp_path: Path) -> None:
    pod = pod_body()
    cards = (a_card("GPU-a", unhealthy="it has fallen off the bus"),)
    rig = await a_rig(tmp_path, pod, claims=[a_claim(pod)], cards=cards)

    assert await rig.refusal() == "card GPU-a is unhealthy: it has fallen off the bus"

    assert (rig.specs(), list(rig.held.claims)) == ({}, [])


async def test_a_runtime_that_reads_no_cdi_specs_is_said(tmp_path: Path) -> None:
    pod = pod_body()
    rig = await a_rig(tmp_path, pod, claims=[a_claim(pod)])
    rig.runtime.problem = "it reads no CDI specs"

    assert await rig.refusal() == "it reads no CDI specs"


async def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    pod = pod_body()
    file = tmp_path / "file"
    file.touch()
    rig = await a_rig(file / "cdi", pod, claims=[a_claim(pod)])

    assert "cannot write" in await rig.refusal()

    assert not list(rig.held.claims)


USES = [("a", "cards", "first"), ("b", "cards", "second")]


def of_a_user(uses: Sequence[tuple[str, str, str]] = USES, **claims: str) -> Json:
    return pod_body(need=None, claims={"cards": "mine", **claims}, uses=uses)


async def test_a_users_own_claim_is_served_by_its_requests(tmp_path: Path) -> None:
    pod = of_a_user()
    rig = await a_rig(tmp_path, pod, claims=[a_users_claim(pod)])

    devices = await rig.preparer.prepare(named("mine"))

    # Never the name of an alternative: with it the container would start without its card.
    assert [each.request for each in devices] == ["first", "second"]
    assert rig.env("first")[names.ENV_VISIBLE_DEVICES] == "GPU-a"
    assert rig.env("second")[names.ENV_VISIBLE_DEVICES] == "GPU-b"
    assert [claim.container for claim, _ in rig.prepared] == ["a", "b"]


async def test_a_container_with_several_requests_is_refused(tmp_path: Path) -> None:
    pod = of_a_user([("a", "cards", "")])
    rig = await a_rig(tmp_path, pod, claims=[a_users_claim(pod)])

    assert "container a has several requests of claim mine" in await rig.refusal(named("mine"))


async def test_a_pod_has_cards_by_one_claim(tmp_path: Path) -> None:
    pod = of_a_user([*USES, ("a", "more", "first")], more="other")
    claims = [a_users_claim(pod), a_users_claim(pod, name="other", uid=OTHER)]
    rig = await a_rig(tmp_path, pod, claims=claims)
    await rig.preparer.prepare(named("mine"))

    text = await rig.refusal(named("other", OTHER))

    assert text == "pod train-0 has cards of claims other and mine: want one"


WANTS_KERNEL: Mapping[str, str] = {names.ISOLATION: "kernel"}


async def test_a_container_that_is_promised_limits_is_created_only_with_them(
    tmp_path: Path,
) -> None:
    pod = pod_body()
    limiter = a_limited_node(tmp_path).limiter
    rig = await a_rig(
        tmp_path / "cdi", pod, claims=[a_claim(pod)], limiter=limiter, why_not_limited=None
    )

    await rig.preparer.prepare(named())

    sources = [mount["hostPath"] for mount in rig.specs()[f"{UID}_train"]["mounts"]]
    assert sources == [ABSENT]
    assert [by for _, by in rig.prepared] == ["kernel"]


async def test_a_container_is_promised_what_its_claim_lets_it_use(tmp_path: Path) -> None:
    need = a_pod_need(structs.replace(a_need(1000, name="train"), limit_mib=Mib(1500)))
    pod = pod_body(need=need)
    claim = a_claim(pod, need=need)
    limiter = a_limited_node(tmp_path).limiter
    rig = await a_rig(tmp_path / "cdi", pod, claims=[claim], limiter=limiter, why_not_limited=None)

    await rig.preparer.prepare(named())

    ((prepared, by),) = rig.prepared
    (part,) = prepared.slices
    assert (part.mib, part.limit_mib, by) == (1000, 1500, "kernel")


async def test_a_pod_that_runs_only_with_limits_is_refused_without_nri(tmp_path: Path) -> None:
    pod = pod_body(annotations=WANTS_KERNEL)
    limiter = a_limited_node(tmp_path).limiter
    rig = await a_rig(tmp_path / "cdi", pod, claims=[a_claim(pod)], limiter=limiter)

    assert "kernel: it needs NRI" in await rig.refusal()

    assert rig.specs() == {}
