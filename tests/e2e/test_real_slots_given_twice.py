"""A real kubelet that gives one slot to two pods: each container gets its own pod's card."""

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest

from deviceplugin.kubelet.pod_resources import PodResourcesClient
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


async def bind(node: RealNode, pod: Json, card: CardUuid, *, mib: int) -> None:
    await node.bind(pod, train=[(card, mib)])


async def wait_logged(node: RealNode, *words: str) -> None:
    def logged() -> bool:
        lines = node.kubelet.log.read_text(errors="replace").splitlines()
        return any(all(word in line for word in words) for line in lines)

    await until_true(logged, what=f"kubelet logs {words}", limit_s=60)


async def two_pods_with_one_slot(node: RealNode, *, one_runs: bool) -> tuple[Json, Json] | None:
    """Make kubelet give one slot to two pods; None if it has picked the other free slot.

    The agent is stopped while kubelet waits for its answer to Allocate. A pod ends meanwhile, and
    the next List makes kubelet forget that the slot in question is taken (kubernetes PR 137534).
    """
    pods = PodResourcesClient(
        node.root / "kubelet" / "pod-resources" / "kubelet.sock", timeout_s=10
    )
    ending = await a_pod(node, mib=300, slow_to_end=True)
    await bind(node, ending, node.cards[1].uuid, mib=300)
    await node.wait_running([ending["metadata"]["uid"]])
    first, second = await a_pod(node, mib=400), await a_pod(node, mib=500)
    await node.delete([ending])
    await wait_logged(node, "Killing container with a grace period", ending["metadata"]["uid"])
    node.agent.send(signal.SIGSTOP)
    try:
        await bind(node, first, node.cards[0].uuid, mib=400)
        await wait_logged(node, '"SyncLoop ADD"', first["metadata"]["name"])
        if not one_runs:
            await bind(node, second, node.cards[1].uuid, mib=500)
        await node.wait_gone([ending])
        await pods.holders()
    finally:
        node.agent.send(signal.SIGCONT)
    if one_runs:
        await node.wait_running([first["metadata"]["uid"]])
        await bind(node, second, node.cards[1].uuid, mib=500)
    both = [first["metadata"]["name"], second["metadata"]["name"]]

    async def allocated() -> bool:
        return {holder.pod for holder in await pods.holders()} >= set(both)

    await until(allocated, what="both pods hold slots", limit_s=60)
    sets = {holder.slot_ids for holder in await pods.holders() if holder.pod in both}
    if len(sets) == 1:
        return first, second
    await node.delete([first, second])
    await node.wait_gone([first, second])
    return None


@pytest.mark.parametrize("one_runs", [True, False], ids=["one runs already", "both start at once"])
async def test_pods_that_were_given_one_slot_start_each_on_its_own_card(one_runs: bool) -> None:
    cards = some_cards("real-1", count=2, mib=CARD_MIB)
    async with a_real_node(cards=cards, flags={"slots-per-card": "1"}) as node:
        await node.wait_counted(slots=2, mib=2 * CARD_MIB)
        pair = None
        for _ in range(TRIES):
            pair = await two_pods_with_one_slot(node, one_runs=one_runs)
            if pair is not None:
                break
        assert pair is not None, "kubelet never gave one slot to two pods: is PR 137534 in it?"
        first, second = pair

        await node.wait_running([pod["metadata"]["uid"] for pod in pair])
        # The one whose spec has been overwritten meanwhile is started once more.
        (pid,) = pids_of(first)
        os.kill(pid, signal.SIGKILL)

        async def again() -> bool:
            return len(node.sights(first)) > 1

        await until(again, what="the first pod's container has been started again", limit_s=120)
        for pod, card, mib in ((first, cards[0].uuid, 400), (second, cards[1].uuid, 500)):
            for sight in node.sights(pod):
                assert sight.devices == node.expected([(card, mib)]), (pod, sight)
        assert [e for e in node.log_events() if e["event"] == "slots_given_twice"]


def pids_of(pod: Json) -> list[int]:
    """Return the shells of the pod's containers."""
    mark = f"POD_UID={pod['metadata']['uid']}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            environ, command = (
                (process / "environ").read_bytes(),
                (process / "cmdline").read_bytes(),
            )
            if mark in environ.split(b"\0") and command.startswith(b"/bin/sh"):
                found.append(int(process.name))
    return found
