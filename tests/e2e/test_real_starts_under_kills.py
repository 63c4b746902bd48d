"""Bursts of starts while agent, kubelet and containerd are killed: each container sees its card.

Each pod has an init container, a sidecar and an app container, each with a card of its own.
"""

import asyncio
import os
import random
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from fracgpu import names
from fracgpu.cards.card import CardUuid
from kube.kinds import NODES
from tests.support.gpu import some_cards
from tests.support.real_node import NODE, RealNode, Sight, a_container, a_real_node, a_real_pod
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1500)]

Json = dict[str, Any]
Assigned = Mapping[str, Sequence[tuple[CardUuid, int]]]
"""Card and MiB by container."""
Kill = Callable[[RealNode], Awaitable[None]]

CARD_MIB: Final = 24_000
SLOTS: Final = 4 * 32
PODS_AT_ONCE: Final = 20
LEAST_STARTS: Final = 300
SIZES_MIB: Final = (200, 240, 280)
LONGEST_PAUSE_S: Final = 2.0
STAYING: Final = ("proxy", "train")
SEED_ENV: Final = "FRACGPU_SEED"

# Why kubelet does not admit a pod while the agent's slots are not registered with it again. Asked
# for them, the device manager says "cannot allocate unregistered device", or that the agent does
# not answer (pkg/kubelet/cm/admission/errors.go). Once kubelet has counted none as allocatable, a
# pod that holds none yet does not fit the node (pkg/kubelet/lifecycle/predicate.go: the prefix and
# the resource that is short). A kubelet whose node was made anew counts no MiB either.
NOT_ADMITTED: Final = {
    "UnexpectedAdmissionError",
    f"OutOf{names.GPU_SLOT}",
    f"OutOf{names.GPU_MEM}",
}


async def kill_agent(node: RealNode) -> None:
    await node.restart_agent()


async def kill_kubelet(node: RealNode) -> None:
    await node.restart_kubelet()


async def kill_containerd(node: RealNode) -> None:
    await node.restart_containerd()


async def make_node_anew(node: RealNode) -> None:
    await node.client.delete(NODES, NODE)
    await node.restart_kubelet()


ROUNDS: Final[tuple[tuple[Kill, ...], ...]] = (
    (kill_agent, kill_containerd, kill_agent),
    (kill_agent, kill_kubelet, kill_agent),
    (kill_containerd, kill_kubelet, kill_agent),
    (kill_agent, make_node_anew, kill_containerd),
    (kill_agent, kill_containerd, kill_agent, kill_kubelet),
)


@dataclass(slots=True, kw_only=True)
class Burst:
    """Pods that were started together, by UID, and what each is assigned."""

    pods: dict[str, Json] = field(default_factory=dict)
    assigned: dict[str, Assigned] = field(default_factory=dict)

    async def add(self, node: RealNode, assigned: Assigned) -> Json:
        """Create a pod, which is not bound yet."""
        ((_, mib),) = assigned["train"]
        init = a_container("prepare", mib=mib, slots=1, stay=False)
        sidecar = a_container("proxy", mib=mib, slots=1) | {"restartPolicy": "Always"}
        app = a_container("train", mib=mib, slots=1)
        body = a_real_pod([app], reports=node.reports, inits=[init, sidecar])
        pod = await node.create(body)
        self.pods[pod["metadata"]["uid"]] = pod
        self.assigned[pod["metadata"]["uid"]] = assigned
        return pod


async def start_at_once(node: RealNode, dice: random.Random) -> Burst:
    """Create pods, and bind them all at the same moment, in another order than their creation."""
    burst = Burst()
    for number in range(PODS_AT_ONCE):
        mib = SIZES_MIB[number % len(SIZES_MIB)]
        containers = ("prepare", "proxy", "train")
        await burst.add(node, {name: [(dice.choice(node.cards).uuid, mib)] for name in containers})
    order = list(burst.pods)
    dice.shuffle(order)
    async with asyncio.TaskGroup() as group:
        for uid in order:
            bound = node.bind(burst.pods[uid], **burst.assigned[uid])
            group.create_task(bound, name=f"bind_{uid}")
    return burst


def wrong_starts(node: RealNode, pod: Json, assigned: Assigned) -> list[str]:
    """Return the starts of the pod's containers that saw other cards than assigned."""
    return [
        f"{pod['metadata']['name']}: {sight}, assigned {assigned}"
        for sight in node.sights(pod)
        if not is_right(node, sight, assigned[sight.container])
    ]


def is_right(node: RealNode, sight: Sight, slices: Sequence[tuple[CardUuid, int]]) -> bool:
    ((card, mib),) = slices
    return (
        sight.devices == node.expected(slices)
        and sight.env.get(names.ENV_VISIBLE_DEVICES) == card
        and sight.env.get(names.ENV_MEM_MIB) == str(mib)
    )


async def replace_not_admitted(node: RealNode, burst: Burst) -> None:
    """Create pods again that kubelet did not admit without the agent, as their controller does."""
    pods = await node.pods()
    for uid in list(burst.pods):
        status = pods[uid].get("status", {})
        if status.get("phase") != "Failed":
            continue
        assert status.get("reason") in NOT_ADMITTED, status
        pod, assigned = burst.pods.pop(uid), burst.assigned.pop(uid)
        # It may have run on its cards before kubelet was restarted and refused it.
        assert wrong_starts(node, pod, assigned) == []
        await node.delete([pod])
        await node.bind(await burst.add(node, assigned), **assigned)


def state_is(pod: Json, container: str, kind: str) -> bool:
    """Report whether a container is *kind*, such as ``running``."""
    status = pod.get("status", {})
    found = (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ()))
    return any(each["name"] == container and kind in each["state"] for each in found)


async def wait_running(node: RealNode, burst: Burst) -> None:
    """Wait until all containers that stay run, in these pods or in those in their place."""

    async def there() -> bool:
        if not node.kubelet.alive:
            await (
                node.kubelet.start()
            )  # as systemd does: it ends where containerd dies at its start
        await replace_not_admitted(node, burst)
        pods = await node.pods()
        return all(state_is(pods[uid], name, "running") for uid in burst.pods for name in STAYING)

    await until(there, what="sidecar and app container of every pod run", limit_s=240)


def starts_of(node: RealNode, burst: Burst) -> dict[tuple[str, str], int]:
    """Return how often each container that stays has started."""
    found = {(uid, name): 0 for uid in burst.pods for name in STAYING}
    for uid, pod in burst.pods.items():
        for sight in node.sights(pod):
            if sight.container in STAYING:
                found[uid, sight.container] += 1
    return found


async def kill_all_while_the_agent_is_away(node: RealNode, burst: Burst) -> None:
    """Kill every container: kubelet starts none of them until the agent is back, then all."""
    await node.agent.kill()
    before = starts_of(node, burst)
    await node.restart_containerd()
    for pod in burst.pods.values():
        for shell in node.shells(pod):
            os.kill(shell, signal.SIGKILL)

    async def tried() -> bool:
        pods = await node.pods()
        return all(state_is(pods[uid], "proxy", "waiting") for uid in burst.pods)

    # A container that has run waits once kubelet has tried to start it again. It does not try the
    # app container before the sidecar runs, and each further try delays the next one.
    await until(tried, what="kubelet has tried to start every pod again", limit_s=120)
    assert starts_of(node, burst) == before

    await node.agent.start()

    async def all_again() -> bool:
        return all(count > before[key] for key, count in starts_of(node, burst).items())

    await until(all_again, what="every container has started again", limit_s=240)
    await wait_running(node, burst)


async def test_three_hundred_starts_under_kills_see_their_own_cards_only() -> None:
    seed = int(os.environ.get(SEED_ENV) or random.randrange(2**32))  # noqa: S311 - no secret
    print(f"{SEED_ENV}={seed}")  # noqa: T201 - to kill at the same moments again
    dice = random.Random(seed)  # noqa: S311 - no secret
    pods: dict[str, tuple[Json, Assigned]] = {}
    async with a_real_node(cards=some_cards("real-1", mib=CARD_MIB)) as node:
        await node.wait_counted(slots=SLOTS, mib=4 * CARD_MIB)
        old = Burst()
        for kills in ROUNDS:
            # The last pods are deleted while these are created, so that slots are used again.
            await node.delete(old.pods.values())
            burst = await start_at_once(node, dice)
            for kill in kills:
                # The moment of a crash is what is tested.
                await asyncio.sleep(dice.uniform(0.0, LONGEST_PAUSE_S))
                await kill(node)
            await wait_running(node, burst)
            await node.wait_reported(burst.pods)
            await node.wait_gone(old.pods.values())
            await node.wait_counted(slots=SLOTS, mib=4 * CARD_MIB)
            pods |= {uid: (pod, burst.assigned[uid]) for uid, pod in burst.pods.items()}
            old = burst
        await kill_all_while_the_agent_is_away(node, old)

        starts = sum(len(node.sights(pod)) for pod, _ in pods.values())
        wrong = [
            text for pod, assigned in pods.values() for text in wrong_starts(node, pod, assigned)
        ]
        print(f"{len(wrong)} of {starts} starts saw another card than their own")  # noqa: T201
        assert wrong == []
        assert starts >= LEAST_STARTS
