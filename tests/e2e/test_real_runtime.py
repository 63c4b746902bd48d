"""A real kubelet and containerd with CDI or NRI off: none runs without its assigned card."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from typing import Any, Final

import pytest

from deviceplugin.exporter.consistency import Disagreement
from fracgpu import names
from tests.support.gpu import some_cards
from tests.support.real_node import MARK, RealNode, a_real_node
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

Json = dict[str, Any]

CARD_MIB: Final = 24_000


async def sharing(node: RealNode) -> tuple[str, str]:
    """Return status and reason of our condition."""
    conditions = (await node.node()).get("status", {}).get("conditions", ())
    for condition in conditions:
        if condition["type"] == names.SHARING_CONDITION:
            return condition["status"], condition["reason"]
    return "", ""


async def test_a_runtime_restarted_with_cdi_off_starts_nothing_until_it_is_on_again() -> None:
    cards = some_cards("real-1", mib=CARD_MIB)
    async with a_real_node(cards=cards, flags={"runtime-period-s": "1"}) as node:
        await node.wait_counted(slots=4 * 32, mib=4 * CARD_MIB)
        pod = await node.bind_pod(0)
        await node.wait_running([pod["metadata"]["uid"]])

        await node.restart_containerd(cdi=False)

        async def said() -> bool:
            return await sharing(node) == ("False", "RuntimeUnknown")

        await until(said, what="the condition says that the runtime reads no CDI specs", limit_s=60)
        (shell,) = node.shells(pod)
        os.kill(shell, signal.SIGKILL)

        async def refused() -> bool:
            found = (await node.pods())[pod["metadata"]["uid"]]
            return "enable_cdi" in json.dumps(found["status"].get("containerStatuses", ()))

        await until(refused, what="the container's restart is refused", limit_s=120)
        await node.restart_containerd(cdi=True)

        async def again() -> bool:
            return len(node.sights(pod)) > 1

        await until(again, what="the container runs again", limit_s=180)
        assert {tuple(sight.devices) for sight in node.sights(pod)} == {
            tuple(node.expected([(cards[0].uuid, 500)]))
        }


async def test_a_spec_that_the_runtime_still_remembers_starts_no_container() -> None:
    """Both pods have the only slot, one after the other, so one CDI name with another content."""
    cards = some_cards("real-1", count=1, mib=CARD_MIB)
    async with a_real_node(cards=cards, nri=False, flags={"slots-per-card": "1"}) as node:
        await node.wait_counted(slots=1, mib=CARD_MIB)
        first = await node.bind_pod(0)
        await node.wait_running([first["metadata"]["uid"]])
        read_again = let_the_runtime_miss_changes(node)
        read_again()
        await node.delete([first])
        await node.wait_gone([first])

        second = await node.bind_pod(0, mib=720)

        async def failed() -> bool:
            pod = (await node.pods())[second["metadata"]["uid"]]
            statuses = pod["status"].get("containerStatuses", ())
            return "fracgpu: the cards were" in json.dumps(statuses)

        await until(failed, what="the hook in the first pod's spec fails the start", limit_s=120)
        assert node.sights(second) == []
        read_again()
        await node.wait_running([second["metadata"]["uid"]])
        (sight,) = node.sights(second)
        assert sight.env[names.ENV_MEM_MIB] == "720"


def let_the_runtime_miss_changes(node: RealNode) -> Callable[[], None]:
    """Mount another folder over the CDI folder, which the runtime goes on watching.

    Returns:
        lets the runtime read all specs of the new folder.
    """
    old, new = node.root / "cdi.old", node.root / "cdi.new"
    shutil.copytree(node.cdi_dir, new)
    old.mkdir()
    for source, target in ((node.cdi_dir, old), (new, node.cdi_dir)):
        # The runtime watches the folder itself, and reads what is at the path.
        subprocess.run(["/bin/mount", "--bind", source, target], check=True)  # noqa: S603

    def read_again() -> None:
        file = old / "changed.new"
        file.touch()
        file.rename(old / "changed")

    return read_again


async def test_the_audit_finds_a_container_that_runs_without_its_card() -> None:
    cards = some_cards("real-1", mib=CARD_MIB)
    async with a_real_node(cards=cards, flags={"audit-period-s": "1"}) as node:
        await node.wait_counted(slots=4 * 32, mib=4 * CARD_MIB)
        pod = await node.bind_pod(1)
        await node.wait_running([pod["metadata"]["uid"]])
        (shell,) = node.shells(pod)
        os.unlink(f"/proc/{shell}/root{MARK}1")  # noqa: PTH108 - a file of another mount namespace

        async def is_found() -> bool:
            found = [event for event in node.log_events() if event["event"] == "disagreement_found"]
            return Disagreement.CARD_MISSING.value in {event["kind"] for event in found}

        await until(is_found, what="the audit finds the container without its card", limit_s=60)
