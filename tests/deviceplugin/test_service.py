"""The node agent as a whole, between a simulated kubelet and the embedded API server."""

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from deviceplugin.container.cdi import (
    MARK_PATH,
    CdiFolder,
    CdiSpec,
    Mount,
    device_name,
    qualified_name,
)
from deviceplugin.identity.node_pods import NodePods
from deviceplugin.kubelet.pre_start import PreStartHandler
from fracgpu import names
from fracgpu.cards.annotations import read_cards, write_cards
from fracgpu.cards.card import Health
from fracgpu.state.pod_info import PodInfo
from kube.client import KubeClient
from kube.informer import Change
from kube.kinds import EVENTS, NODES, PODS
from kube.objects import decode_object
from simulator.cards.processes import SimulatedProcess
from simulator.cards.simulated_cards import cards_document, open_cards, write_cards_file
from tests.support.gpu import a_gpu_pod, some_cards
from tests.support.node import Node, a_node
from tests.support.waiting import until, until_true

Json = dict[str, Any]


@pytest.fixture
async def node(kubeconfig: Path, kube: KubeClient) -> AsyncIterator[Node]:
    async with a_node(kube, kubeconfig) as running:
        yield running


async def test_a_pod_gets_exactly_the_card_its_assignment_names(node: Node) -> None:
    pod = await node.run_pod("one", card=2, mib=3000)

    await node.wait_phase(pod, "Running")

    got = node.kubelet.created_containers()[pod["metadata"]["uid"]]["train"]
    assert dict(got.env) == {
        names.ENV_VISIBLE_DEVICES: node.uuid(2),
        names.ENV_CARDS: node.uuid(2),
        names.ENV_MEM_MIB: "3000",
        names.ENV_CARD_MIB: "24000",
        names.ENV_ALIYUN_CONTAINER: "3000",
        names.ENV_ALIYUN_DEV: "24000",
    }


async def test_a_pod_without_an_assignment_never_starts_and_its_events_say_why(
    node: Node,
) -> None:
    pod = await node.bind(a_gpu_pod("forged"))

    await node.wait_message(
        pod, f"container train of default/forged has no cards in {names.ASSIGNMENT}"
    )

    assert node.cards_of(pod) == ()


async def test_after_a_kill_everything_is_rebuilt_and_containers_restart_on_their_cards(
    node: Node,
) -> None:
    before = await node.run_pod("before", card=1)
    await node.wait_phase(before, "Running")

    await node.kill_agent()
    during = await node.run_pod("during", card=2)
    await node.wait_phase(during, "Failed")  # kubelet has no healthy slot to give
    node.start_agent()
    await node.wait_counted()
    after = await node.run_pod("after", card=3)
    await node.wait_phase(after, "Running")
    await node.kubelet.restart_container(before["metadata"]["uid"], "train")

    assert node.cards_of(after) == (node.uuid(3),)
    assert node.cards_of(before) == (node.uuid(1),)


async def test_a_container_that_waits_for_its_start_survives_the_agents_death(node: Node) -> None:
    filler = await node.run_pod("filler", card=0, mib=24_000)
    await node.wait_phase(filler, "Running")
    waiting = await node.run_pod("waiting", card=0, mib=1_000)
    await node.wait_message(waiting, "together hold")

    await node.kill_agent()
    await node.client.delete(PODS, "filler", namespace="default")
    await node.wait_message(waiting, "has been stopped")
    node.start_agent()
    await node.wait_phase(waiting, "Running")

    assert node.cards_of(waiting) == (node.uuid(0),)


async def test_a_card_with_an_error_of_its_own_is_never_healthy_for_the_next_agent(
    node: Node,
) -> None:
    def with_errors(*xids: int) -> None:
        document = cards_document(node.cards)
        document["cards"][1]["xids"] = list(xids)
        write_cards_file(node.cards_file, document)

    async def closed() -> bool:
        found = await node.client.get_object(NODES, node.name)
        cards = read_cards(found["metadata"]["annotations"][names.NODE_CARDS])
        return [card.health for card in cards].count(Health.UNHEALTHY) == 1

    with_errors(79)
    await until(closed, what="the card is closed")

    await node.kill_agent()
    with_errors()  # as with a real driver, which reports an error once
    node.start_agent()

    async def ready() -> bool:
        assert await closed()
        return (await node.scrape("/readyz"))[0] == HTTPStatus.OK

    await until(ready, what="the next agent is ready")
    metrics = await node.scrape()
    assert "fracgpu_card_healthy" in metrics[1]
    assert await closed()


async def test_an_error_that_the_agent_before_has_seen_last_closes_the_card_for_the_next_one(
    kubeconfig: Path, kube: KubeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    async with a_node(kube, kubeconfig, agent=False) as node:
        before = os.open(node.folders.device_plugins, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(before, fcntl.LOCK_EX)
            node.start_agent()
            logged: list[str] = []

            def says(event: str) -> bool:
                logged.append(capsys.readouterr().out)
                return event in "".join(logged)

            await until_true(lambda: says("another_agent_acts"), what="it waits for the other one")
            cards = [replace(card, errors=("XID 79",)) for card in node.cards]
            notes = {names.NODE_CARDS: write_cards(cards)}
            await kube.patch(NODES, node.name, {"metadata": {"annotations": notes}})
            await until_true(lambda: says("card_health_changed"), what="it has seen the error")
        finally:
            os.close(before)
        await until_true(lambda: says("node_written"), what="the next agent has written the node")

        found = await kube.get_object(NODES, node.name)
        written = read_cards(found["metadata"]["annotations"][names.NODE_CARDS])
        assert {card.health_reason for card in written} == {"XID 79"}


async def test_an_agent_that_makes_a_mistake_in_a_call_ends_with_1(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mistake(_: PreStartHandler, slot_ids: frozenset[str]) -> str:
        raise KeyError(slot_ids)

    monkeypatch.setattr(PreStartHandler, "allocate", mistake)
    assert node.agent is not None

    await node.run_pod("one", card=1)

    async with asyncio.timeout(60):
        assert await node.agent == 1


async def an_init_only_pod(node: Node, name: str, *, card: int) -> Json:
    """Return a pod whose init container alone has a slot."""
    body = a_gpu_pod(name)
    (app,) = body["spec"]["containers"]
    body["spec"]["initContainers"] = [{**app, "name": "prepare"}]
    body["spec"]["containers"] = [{"name": "main", "image": app["image"]}]
    return await node.bind(body, prepare=[(card, 1000)])


async def test_equal_init_only_pods_that_start_at_once_each_get_their_own_card(node: Node) -> None:
    async with asyncio.TaskGroup() as group:
        starts = [
            group.create_task(an_init_only_pod(node, f"init-{number}", card=number % 4))
            for number in range(8)
        ]
    pods = [start.result() for start in starts]

    for pod in pods:
        await node.wait_phase(pod, "Running")
    got = [node.cards_of(pod, "prepare") for pod in pods]
    assert got == [(node.uuid(number % 4),) for number in range(8)]


def slots_of(node: Node, pod: Json) -> set[str]:
    """Return the ids that kubelet has given the pod."""
    return {
        slot
        for key, grants in node.kubelet.devices.allocations().items()
        for grant in grants
        for slot in grant.ids
        if key.pod_uid == pod["metadata"]["uid"]
    }


async def test_a_pod_that_an_earlier_agent_admitted_restarts_on_its_own_card_after_an_upgrade(
    node: Node,
) -> None:
    """Kubelet keeps the device of its slots; the runtime may remember what its spec gave."""
    pod = await node.run_pod("before", card=1)
    await node.wait_phase(pod, "Running")
    name = device_name(slots_of(node, pod))
    node.kubelet.devices.rename(pod["metadata"]["uid"], (qualified_name(name),))
    mark = node.folders.cdi / f"fracgpu.io-slot_{name}.0123456789abcdef"
    mark.touch()
    mount = Mount(host_path=str(mark), path=MARK_PATH)
    env = {names.ENV_CARDS: node.uuid(0)}  # of a pod with the same slot
    CdiFolder(node.folders.cdi).write(CdiSpec(name=name, env=env, mounts=(mount,)))
    await node.kill_agent()
    node.start_agent()
    await node.wait_counted()

    await node.kubelet.restart_container(pod["metadata"]["uid"], "train")

    assert node.cards_of(pod) == (node.uuid(1),)


async def test_without_nri_the_listed_container_starts_and_an_unlisted_one_never(
    kubeconfig: Path, kube: KubeClient
) -> None:
    async with a_node(kube, kubeconfig, nri=False) as node:
        pods = [await node.run_pod(f"listed-{n}", card=n % 4) for n in range(6)]
        for pod in pods:
            await node.wait_phase(pod, "Running")
        unlisted = await an_init_only_pod(node, "init", card=0)
        await node.wait_message(unlisted, "enable NRI")

        await node.kill_agent()
        node.start_agent()
        await node.wait_counted()
        await node.kubelet.restart_container(pods[3]["metadata"]["uid"], "train")

        assert [node.cards_of(pod) for pod in pods] == [(node.uuid(n % 4),) for n in range(6)]
        assert node.cards_of(unlisted, "prepare") == ()
        found = (await node.client.get_object(NODES, node.name))["metadata"]["annotations"]
        assert found[names.NODE_IDENTITY] == "listed"


async def test_specs_of_pods_that_are_gone_do_not_stay(kubeconfig: Path, kube: KubeClient) -> None:
    async with a_node(kube, kubeconfig, nri=False) as node:
        first = await node.run_pod("first", card=0)
        await node.wait_phase(first, "Running")
        await node.kill_agent()
        await node.client.delete(PODS, "first", namespace="default")

        async def gone() -> bool:
            return not (await node.client.list(PODS)).items

        await until(gone, what="the pod is gone")
        for file in node.folders.cdi.iterdir():  # as if it had run for an hour
            os.utime(file, (0, file.stat().st_mtime - 3600))
        node.start_agent()

        async def clean() -> bool:
            return not list(node.folders.cdi.glob("*.json"))

        await until(clean, what="the leftover spec is removed")


async def test_readiness_names_each_check(node: Node) -> None:
    async def ready() -> bool:
        return (await node.scrape("/readyz"))[0] == 200

    await until(ready, what="the agent is ready")
    _, text = await node.scrape("/readyz")

    for check in ("cards", "pods", "node", "kubelet"):
        assert f"{check}: ok" in text


@pytest.mark.slow
async def test_pods_that_kubelet_refused_while_the_agent_was_away_are_cleaned_up_never_a_bare_one(
    node: Node,
) -> None:
    await node.kill_agent()
    owner = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": "train",
        "uid": "0f7d1b0a-0000-4000-8000-000000000000",
        "controller": True,
    }
    owned = a_gpu_pod("owned", mib=1000)
    owned["metadata"]["ownerReferences"] = [owner]
    refused = await node.bind(owned, train=[(0, 1000)])
    bare = await node.run_pod("bare", card=1)
    for pod in (refused, bare):
        failed = await node.wait_phase(pod, "Failed")
        assert failed["status"]["reason"] == "UnexpectedAdmissionError"

    node.start_agent()

    async def gone() -> bool:
        return len((await node.client.list(PODS)).items) == 1

    await until(gone, what="the refused pod with an owner is gone")
    await node.wait_message(refused, "ReplicaSet train has replaced it")
    assert (await node.wait_phase(bare, "Failed"))["metadata"]["uid"] == bare["metadata"]["uid"]


async def test_a_node_that_stops_sharing_is_as_it_was_before_and_its_pods_run_on(
    kubeconfig: Path, kube: KubeClient, tmp_path: Path
) -> None:
    mps = tmp_path / "mps"
    (mps / "GPU-of-an-earlier-life" / "pipe").mkdir(parents=True)
    (mps / "shm").mkdir()
    async with a_node(kube, kubeconfig, agent=False, mps_dir=mps) as node:
        before = without_times(await kube.get_object(NODES, node.name))
        node.start_agent()
        await node.wait_counted()
        pod = await node.run_pod("stays", card=0)
        await node.wait_phase(pod, "Running")
        ended = await node.run_pod("ends", card=1)
        await node.wait_phase(ended, "Running")
        await kube.delete(PODS, "ends", namespace="default", grace_s=0)

        await kube.patch(NODES, node.name, {"metadata": {"labels": {names.SHARE_LABEL: "false"}}})
        await node.stop_agent()

        left = without_times(await kube.get_object(NODES, node.name))
        left["metadata"]["labels"][names.SHARE_LABEL] = "true"
        for amounts in (left["status"]["capacity"], left["status"]["allocatable"]):
            amounts.pop(names.GPU_SLOT)  # kubelet's, for five minutes and as a zero for ever
        assert left == before
        assert list(node.folders.cdi.glob("*fracgpu*")) == []
        assert [path.name for path in mps.iterdir()] == ["shm"]
        events = [decode_object(raw) for raw in (await kube.list(EVENTS)).items]
        (note,) = [event["message"] for event in events if event["reason"] == "SharingEnded"]
        assert "default/stays" in note
        assert (await node.wait_phase(pod, "Running"))["metadata"]["uid"] == pod["metadata"]["uid"]


def without_times(node: Any) -> Any:
    """Return the node without what changes with every write."""
    metadata = {
        key: value
        for key, value in node["metadata"].items()
        if key not in ("resourceVersion", "managedFields", "generation")
    }
    conditions = [
        {key: value for key, value in condition.items() if "Time" not in key}
        for condition in node["status"].get("conditions", ())
    ]
    return {**node, "metadata": metadata, "status": {**node["status"], "conditions": conditions}}


async def test_livez_fails_when_the_reading_of_the_cards_stands_still(
    kubeconfig: Path, kube: KubeClient
) -> None:
    async with a_node(kube, kubeconfig, nvml_timeout_s=0.2) as node:
        assert await node.scrape("/livez") == (200, "ok\n")
        # A process whose file in /proc never answers: the reading waits for it, and no call of the
        # driver ends it.
        place = node.folders.proc / "4711"
        place.mkdir(parents=True)
        os.mkfifo(place / "stat")
        card = str(node.uuid(0))
        stuck = SimulatedProcess(pid=4711, cards=(card,), used_mib=10, busy_ratio=0.0)
        processes = open_cards(node.cards_file).processes
        await open_cards(node.cards_file).list_cards()
        processes.write(stuck)

        async def dead() -> bool:
            status, text = await node.scrape("/livez")
            return status == 503 and text.startswith("reading the cards has made no progress for ")

        try:
            await until(dead, what="/livez says that the reading stands still")
        finally:
            processes.remove(4711)
            await asyncio.to_thread(_let_go, place / "stat")

        async def alive() -> bool:
            return (await node.scrape("/livez"))[0] == 200

        await until(alive, what="/livez is content again")


def _let_go(fifo: Path) -> None:
    """Unblock the readers of *fifo*, with nothing to read."""
    with suppress(OSError):
        os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))


# Kubelet gives a slot of a listed pod to another pod, whose init container it does not list. In
# these sequences that one got the listed pod's card as long as the agent told who starts by
# excluding all others. Now it gets its own where the runtime names it, and is refused elsewhere.
SEVERAL = "an init container and several containers explain more allocations than there were"
UNKNOWN = "the other pod has not reached the agent when the listed one starts"
RESTARTED = "what was allocated before the agent's restart is not known to it"


class Late:
    """Keeps the pod named ``other`` from the agent until it is released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._held: list[tuple[NodePods, Change[PodInfo]]] = []
        self._observe = NodePods.observe
        self.holding = False

        def observe(pods: NodePods, change: Change[PodInfo]) -> None:
            if self.holding and change.object.record.name == "other":
                self._held.append((pods, change))
            else:
                self._observe(pods, change)

        monkeypatch.setattr(NodePods, "observe", observe)

    def release(self) -> None:
        self.holding = False
        for pods, change in self._held:
            self._observe(pods, change)


async def a_listed_pod(node: Node, *, init: bool) -> Json:
    """Return a running pod with two slots on card 0."""
    body = a_gpu_pod("listed")
    (app,) = body["spec"]["containers"]
    body["spec"]["containers"] = [app, {**app, "name": "eval"}]
    assigned = {"train": [(0, 1000)], "eval": [(0, 1000)]}
    if init:
        body["spec"]["initContainers"] = [{**app, "name": "prepare"}]
        assigned["prepare"] = [(0, 1000)]
    pod = await node.bind(body, **assigned)
    await node.wait_phase(pod, "Running")
    return pod


@pytest.mark.parametrize("sequence", [SEVERAL, UNKNOWN, RESTARTED])
@pytest.mark.parametrize("nri", [True, False], ids=["nri", "listed"])
async def test_an_init_container_with_a_listed_pods_slot_never_gets_its_card(
    kubeconfig: Path,
    kube: KubeClient,
    monkeypatch: pytest.MonkeyPatch,
    nri: bool,
    sequence: str,
) -> None:
    late = Late(monkeypatch)
    cards = some_cards("gpu-1", count=2)
    async with a_node(kube, kubeconfig, cards=cards, nri=nri, slots_per_card=2) as node:
        listed = await a_listed_pod(node, init=sequence == SEVERAL)
        for name in ("third", "fourth"):  # so that all slots are taken
            await node.wait_phase(await node.run_pod(name, card=1), "Running")
        node.kubelet.devices.forget(listed["metadata"]["uid"])
        if sequence == RESTARTED:
            await node.kill_agent()
            node.start_agent()
            await node.wait_counted()
        late.holding = sequence == UNKNOWN

        other = await an_init_only_pod(node, "other", card=1)
        if not nri:
            await node.wait_message(
                other, "fracgpu: the cards were prepared for a container of another pod"
            )
        elif sequence == UNKNOWN:
            await node.wait_message(other, "the agent does not know pod default/other")
        else:
            await node.wait_message(other, f"the pods of {node.name} together have")
        assert slots_of(node, other) <= slots_of(node, listed)
        for container in ("train", "eval"):
            await node.kubelet.restart_container(listed["metadata"]["uid"], container)
        late.release()
        await kube.delete(PODS, "third", namespace="default")
        if nri:
            await node.wait_phase(other, "Running")

        assert node.cards_of(other, "prepare") == ((node.uuid(1),) if nri else ())
        assert [node.cards_of(listed, name) for name in ("train", "eval")] == [(node.uuid(0),)] * 2
