"""What a container finds on a real containerd: the driver's files, and its MPS daemon."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from fracgpu import names
from tests.support.gpu import some_cards
from tests.support.mps import answering, mps_daemons
from tests.support.nvml import MPS_CONTROL, a_program
from tests.support.real_node import MARK, RealNode, Sight, a_container, a_real_node, a_real_pod
from tests.support.waiting import until_true

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

CARD_MIB = 24_000
# A file that the container reads in place of a library.
LIBRARY = "/run/fracgpu/env"


def write_driver_spec(node: RealNode) -> None:
    """Write a CDI spec as nvidia-ctk does: each card's device file, and a library for all."""
    library = node.root / "libcuda.txt"
    library.write_text("libcuda.so.580\n")
    document = {
        "cdiVersion": "0.6.0",
        "kind": "nvidia.com/gpu",
        "devices": [
            {
                "name": card.uuid,
                "containerEdits": {
                    "deviceNodes": [
                        {
                            "path": f"{MARK}{card.index}",
                            "hostPath": str(node.root / "cards" / f"card{card.index}"),
                        }
                    ]
                },
            }
            for card in node.cards
        ],
        "containerEdits": {
            "env": ["NVIDIA_VISIBLE_DEVICES=void", "DRIVER=580"],
            "mounts": [
                {
                    "hostPath": str(library),
                    "containerPath": LIBRARY,
                    "options": ["ro", "nosuid", "nodev", "bind"],
                }
            ],
        },
    }
    (node.cdi_dir / "nvidia.yaml").write_text(yaml.safe_dump(document))


async def started(node: RealNode, card: int) -> Sight:
    """Run a pod of one container on a card; return what it saw."""
    pod = await node.bind_pod(card)
    await node.wait_running([pod["metadata"]["uid"]])
    (sight,) = node.sights(pod)
    return sight


async def test_the_drivers_files_come_with_the_one_card_that_was_promised() -> None:
    async with a_real_node(cards=some_cards("real-1", mib=CARD_MIB)) as node:
        await node.wait_counted(slots=4 * 32, mib=4 * CARD_MIB)
        write_driver_spec(node)

        sight = await started(node, card=2)

        card = node.cards[2].uuid
        assert sight.devices == node.expected([(card, 500)])
        assert sight.from_file == ("libcuda.so.580",)
        assert sight.env["DRIVER"] == "580"
        assert sight.env[names.ENV_VISIBLE_DEVICES] == card


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path, as the sockets of an MPS daemon need."""
    with tempfile.TemporaryDirectory(prefix="fg-", ignore_cleanup_errors=True) as name:
        yield Path(name)


async def test_a_container_reaches_the_mps_daemon_of_its_own_card_also_after_its_agent_is_gone(
    tmp_path: Path, folder: Path
) -> None:
    program = a_program(tmp_path, MPS_CONTROL)
    cards = some_cards("real-1", mib=CARD_MIB)
    card = cards[1].uuid
    wanted = {names.ISOLATION: "mps"}
    async with a_real_node(cards=cards, flags={"mps-dir": str(folder)}) as node:
        await node.wait_counted(slots=4 * 32, mib=4 * CARD_MIB)
        early = a_real_pod([a_container("train", mib=500, slots=1)], reports=node.reports)
        early["metadata"]["annotations"] = wanted
        waits = await node.create(early)
        await node.bind(waits, train=[(card, 500)])

        def refused() -> bool:
            events = node.log_events()
            return any(event["event"] == "container_refused" for event in events)

        await until_true(refused, what="no start without a daemon", limit_s=120)
        assert node.sights(waits) == []
        async with mps_daemons(folder, program, card):
            await answering(folder, card)
            await node.wait_running([waits["metadata"]["uid"]], limit_s=180)
            (sight,) = node.sights(waits)
            await node.agent.kill()

            await answering(folder, card)
            assert sight.env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=500M"
            assert sight.mps == (card,)
            assert sight.devices == node.expected([(card, 500)])
