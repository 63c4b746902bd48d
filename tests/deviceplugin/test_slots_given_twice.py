"""Kubelet gives a slot of a listed pod to another pod, whose init container it does not list.

In these sequences the init container got the listed pod's card as long as the agent told who starts
by excluding all others. Now it gets its own where the runtime names it, and is refused elsewhere.
"""

from pathlib import Path
from typing import Any

import pytest

from deviceplugin.identity.node_pods import NodePods
from fracgpu.state.pod_info import PodInfo
from kube.client import KubeClient
from kube.informer import Change
from kube.kinds import PODS
from simulator.apiserver.server import ApiServer
from tests.support.gpu import a_gpu_pod, some_cards
from tests.support.node import Node, a_node

Json = dict[str, Any]

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


async def another_pod(node: Node) -> Json:
    """Return a pod whose init container alone has a slot, on card 1."""
    body = a_gpu_pod("other")
    (app,) = body["spec"]["containers"]
    body["spec"]["initContainers"] = [{**app, "name": "prepare"}]
    body["spec"]["containers"] = [{"name": "main", "image": app["image"]}]
    return await node.bind(body, prepare=[(1, 1000)])


def slots_of(node: Node, pod: Json) -> set[str]:
    return {
        slot
        for key, grants in node.kubelet.devices.allocations().items()
        for grant in grants
        for slot in grant.ids
        if key.pod_uid == pod["metadata"]["uid"]
    }


@pytest.mark.parametrize("sequence", [SEVERAL, UNKNOWN, RESTARTED])
@pytest.mark.parametrize("nri", [True, False], ids=["nri", "listed"])
async def test_an_init_container_with_a_listed_pods_slot_never_gets_its_card(
    api: ApiServer,
    kube: KubeClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    nri: bool,
    sequence: str,
) -> None:
    late = Late(monkeypatch)
    config = api.kubeconfig(tmp_path / "kubeconfig")
    cards = some_cards("gpu-1", count=2)
    async with a_node(kube, config, cards=cards, nri=nri, slots_per_card=2) as node:
        listed = await a_listed_pod(node, init=sequence == SEVERAL)
        for name in ("third", "fourth"):  # so that all slots are taken
            await node.wait_phase(await node.run_pod(name, card=1), "Running")
        node.kubelet.devices.forget(listed["metadata"]["uid"])
        if sequence == RESTARTED:
            await node.kill_agent()
            node.start_agent()
            await node.wait_counted()
        late.holding = sequence == UNKNOWN

        other = await another_pod(node)
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
