"""Pods that the agent before NRI admitted: after an upgrade, a rollback and an upgrade again.

That agent's code is taken from the repository's history: kubelet's checkpoint, the CDI specs and
what the runtime remembers of them are as it left them.
"""

import io
import os
import signal
import subprocess
import tarfile
from pathlib import Path
from typing import Any, Final

import pytest

from fracgpu import names
from fracgpu.cards.card import CardUuid
from tests.support.gpu import some_cards
from tests.support.processes import Child
from tests.support.real_node import RealNode, a_container, a_real_node, a_real_pod, state_of
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

Json = dict[str, Any]

ROOT: Final = Path(__file__).parents[2]
# The last agent that inferred whose container starts, and named a CDI device for each slot.
BEFORE_NRI: Final = "d918e091c31d251669e6c659ec77669ecb11af1e"
NEW_FLAGS: Final = ("--nri-socket", "--host-dir", "--plugins-dir", "--plugins-registry-dir")
CARD_MIB: Final = 24_000
SLOTS: Final = 2 * 32


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """The tree of the agent before NRI."""
    archived = subprocess.run(  # noqa: S603 - every word stands in this file
        ["git", "-C", ROOT, "archive", BEFORE_NRI],  # noqa: S607 - as developers have it
        capture_output=True,
        check=False,
    )
    if archived.returncode != 0:
        pytest.skip(f"the history does not go back to {BEFORE_NRI[:8]}: {archived.stderr.decode()}")
    with tarfile.open(fileobj=io.BytesIO(archived.stdout)) as tar:
        tar.extractall(tmp_path, filter="data")
    return tmp_path


def agent_of(tree: Path, node: RealNode) -> Child:
    """Return the agent of an earlier tree with the settings of the node's."""
    program, *words = node.agent.command
    flags = dict(zip(words[4::2], words[5::2], strict=True))
    kept = [word for flag in flags.items() if flag[0] not in NEW_FLAGS for word in flag]
    links = ["--links-dir", str(node.root / "links")]
    # Modules are found in the folder where Python is started, before installed ones.
    return Child(
        ["env", f"--chdir={tree}", program, *words[:4], *kept, *links],
        log=node.root / "earlier.log",
    )


async def a_pod(node: RealNode, card: CardUuid, *, mib: int) -> Json:
    """Return a running pod with a sidecar and an app container on *card*."""
    sidecar = a_container("proxy", mib=mib, slots=1) | {"restartPolicy": "Always"}
    body = a_real_pod(
        [a_container("train", mib=mib, slots=1)], reports=node.reports, inits=[sidecar]
    )
    pod = await node.create(body)
    await node.bind(pod, proxy=[(card, mib)], train=[(card, mib)])
    await node.wait_running([pod["metadata"]["uid"]])
    return pod


def kill(node: RealNode, pod: Json) -> None:
    for shell in node.shells(pod):
        os.kill(shell, signal.SIGKILL)


async def wait_started(node: RealNode, pod: Json, *, times: int) -> None:
    """Wait until both containers have started *times* in all."""

    async def started() -> bool:
        found = [sight.container for sight in node.sights(pod)]
        return min(found.count("proxy"), found.count("train")) >= times

    what = f"the containers of {pod['metadata']['name']} have started {times} times"
    try:
        await until(started, what=what, limit_s=120)
    except AssertionError as error:
        now = state_of((await node.pods()).get(pod["metadata"]["uid"]))
        raise AssertionError(f"{error}: {now}; agent: {node.agent.tail()}") from None


async def test_pods_of_the_agent_before_restart_on_their_own_card_whichever_agent_runs(
    earlier: Path,
) -> None:
    async with a_real_node(cards=some_cards("real-1", count=2, mib=CARD_MIB)) as node:
        now, before = node.agent, agent_of(earlier, node)
        await node.wait_counted(slots=SLOTS, mib=2 * CARD_MIB)
        await node.replace_agent(before, slots=SLOTS)
        pods = [
            await a_pod(node, card.uuid, mib=mib)
            for card, mib in zip(node.cards, (400, 500), strict=True)
        ]

        times = 1
        for agent in (now, before, now):
            await node.replace_agent(agent, slots=SLOTS)
            times += 1
            for pod in pods:
                kill(node, pod)
            for pod in pods:
                await wait_started(node, pod, times=times)

        for pod, card, mib in zip(pods, node.cards, (400, 500), strict=True):
            assert [sight.devices for sight in node.sights(pod)] == [
                node.expected([(card.uuid, mib)])
            ] * (2 * times)
            assert {sight.env[names.ENV_MEM_MIB] for sight in node.sights(pod)} == {str(mib)}


async def test_a_pod_of_the_agent_now_does_not_start_under_the_one_before_and_does_again(
    earlier: Path,
) -> None:
    async with a_real_node(cards=some_cards("real-1", count=2, mib=CARD_MIB)) as node:
        now, before = node.agent, agent_of(earlier, node)
        await node.wait_counted(slots=SLOTS, mib=2 * CARD_MIB)
        pod = await a_pod(node, node.cards[1].uuid, mib=400)

        await node.replace_agent(before, slots=SLOTS)
        kill(node, pod)

        async def refused() -> bool:
            found = str((await node.pods())[pod["metadata"]["uid"]]["status"])
            # It removes the shared device's spec, which nobody holds as far as it knows.
            return "the-node-agent-has-not-answered" in found or "=shared" in found

        await until(refused, what="kubelet shows why the container does not start", limit_s=120)
        assert len(node.sights(pod)) == 2

        await node.replace_agent(now, slots=SLOTS)
        await wait_started(node, pod, times=2)
        for sight in node.sights(pod):
            assert sight.devices == node.expected([(node.cards[1].uuid, 400)])
