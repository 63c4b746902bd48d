"""A real kubelet that gives one slot to two pods: right with NRI, refused without."""

import json
import os
import signal
from typing import Any, Final

import pytest

from fracgpu.cards.card import CardUuid
from tests.support.gpu import some_cards
from tests.support.real_node import RealNode, a_container, a_real_node, a_real_pod
from tests.support.waiting import until, until_true

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

Json = dict[str, Any]

CARD_MIB: Final = 24_000
# Kubelet picks one of two free slots: one in a thousand runs never sees it pick the wrong one.
TRIES: Final = 10
SLOW_END_S: Final = 8


async def a_pod(node: RealNode, *, mib: int, slow_to_end: bool = False) -> Json:
    container = a_container("train", mib=mib, slots=1)
    if slow_to_end:
        container["command"][-1] = container["command"][-1].replace('trap "exit 0"', 'trap ""')
    body = a_real_pod([container], reports=node.reports)
    if slow_to_end:
        body["spec"]["terminationGracePeriodSeconds"] = SLOW_END_S
    return await node.create(body)


async def a_pod_with_init_container(node: RealNode, *, mib: int) -> Json:
    """A pod whose init container alone has a card: kubelet lists no slot of it."""
    init = a_container("prepare", mib=mib, slots=1, stay=False)
    main = a_container("main", mib=0, slots=0)
    return await node.create(a_real_pod([main], reports=node.reports, inits=[init]))


async def bind(node: RealNode, pod: Json, card: CardUuid, *, mib: int, to: str = "train") -> None:
    await node.bind(pod, **{to: [(card, mib)]})


async def a_slot_that_kubelet_forgot(node: RealNode) -> Json:
    """Return a running pod whose slot kubelet takes for free.

    The agent is stopped while kubelet waits for its answer to Allocate. A pod ends meanwhile, and
    the next List makes kubelet forget that the slot in question is taken (kubernetes PR 137534).
    """
    ending = await a_pod(node, mib=300, slow_to_end=True)
    await bind(node, ending, node.cards[1].uuid, mib=300)
    await node.wait_running([ending["metadata"]["uid"]])
    first = await a_pod(node, mib=400)
    await node.delete([ending])
    await node.wait_logged("Killing container with a grace period", ending["metadata"]["uid"])
    node.agent.send(signal.SIGSTOP)
    try:
        await bind(node, first, node.cards[0].uuid, mib=400)
        await node.wait_logged('"SyncLoop ADD"', first["metadata"]["name"])
        await node.wait_gone([ending])
        await node.pod_resources.holders()
    finally:
        node.agent.send(signal.SIGCONT)
    await node.wait_running([first["metadata"]["uid"]])
    return first


def allocations(node: RealNode) -> list[list[str]]:
    return [each["slots"] for each in node.log_events() if each["event"] == "slots_allocated"]


async def two_pods_with_one_slot(node: RealNode, *, init: bool) -> tuple[Json, Json]:
    """Return a running pod, and one that kubelet has given the same slot.

    Args:
        node: has two slots.
        init: the second pod's init container gets it, from an agent that knows nothing of before.
    """
    for _ in range(TRIES):
        first = await a_slot_that_kubelet_forgot(node)
        slots = allocations(node)[-1]
        if init:
            await node.replace_agent(node.agent, slots=2)
            # Until the node says so too, kubelet admits nothing for these slots.
            await node.wait_counted(slots=2, mib=2 * CARD_MIB)
            second = await a_pod_with_init_container(node, mib=500)
        else:
            second = await a_pod(node, mib=500)
        before = len(allocations(node))
        to = "prepare" if init else "train"
        await bind(node, second, node.cards[1].uuid, mib=500, to=to)

        def allocated(before: int = before) -> bool:
            return len(allocations(node)) > before

        await until_true(allocated, what="kubelet allocates a slot", limit_s=60)
        if allocations(node)[before] == slots:
            return first, second
        await node.delete([first, second])
        await node.wait_gone([first, second])
    raise AssertionError("kubelet never gave one slot to two pods: is PR 137534 in it?")


async def restarted(node: RealNode, pod: Json) -> None:
    """Kill the pod's container, and wait until it has started again."""
    before = len(node.sights(pod))
    (shell,) = node.shells(pod)
    os.kill(shell, signal.SIGKILL)

    async def again() -> bool:
        return len(node.sights(pod)) > before

    await until(again, what="the container has been started again", limit_s=120)


@pytest.mark.parametrize("init", [False, True], ids=["another pod", "an init container, restart"])
async def test_with_nri_each_pod_starts_on_its_own_card(init: bool) -> None:
    cards = some_cards("real-1", count=2, mib=CARD_MIB)
    async with a_real_node(cards=cards, flags={"slots-per-card": "1"}) as node:
        await node.wait_counted(slots=2, mib=2 * CARD_MIB)
        first, second = await two_pods_with_one_slot(node, init=init)

        await node.wait_running([second["metadata"]["uid"]])
        await restarted(node, first)

        expected = {
            first["metadata"]["uid"]: node.expected([(cards[0].uuid, 400)]),
            second["metadata"]["uid"]: node.expected([(cards[1].uuid, 500)]),
        }
        for pod in (first, second):
            for sight in node.sights(pod):
                none = sight.container == "main"
                assert sight.devices == ({} if none else expected[pod["metadata"]["uid"]]), sight


@pytest.mark.parametrize("init", [False, True], ids=["another pod", "an init container, restart"])
async def test_without_nri_the_second_pod_is_refused_and_the_first_runs_on(init: bool) -> None:
    cards = some_cards("real-1", count=2, mib=CARD_MIB)
    async with a_real_node(cards=cards, nri=False, flags={"slots-per-card": "1"}) as node:
        await node.wait_counted(slots=2, mib=2 * CARD_MIB)
        first, second = await two_pods_with_one_slot(node, init=init)

        async def refused() -> bool:
            pod = (await node.pods())[second["metadata"]["uid"]]
            text = json.dumps(pod["status"])
            # By PreStart, which sees two pods; or by the hook, which sees the wrong one.
            return "enable NRI" in text or "fracgpu: the cards were prepared" in text

        await until(refused, what="the second pod is refused", limit_s=120)
        assert node.sights(second) == []
        for sight in node.sights(first):
            assert sight.devices == node.expected([(cards[0].uuid, 400)])

        await node.delete([first])
        await node.wait_gone([first])
        if not init:
            await node.wait_running([second["metadata"]["uid"]])
            for sight in node.sights(second):
                assert sight.devices == node.expected([(cards[1].uuid, 500)])
