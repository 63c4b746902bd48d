"""The pod of the MPS daemons: one for each card, Ready once each answers, all gone at its end."""

import asyncio
import tempfile
from collections.abc import Awaitable
from pathlib import Path

from deviceplugin.container.mps import ANSWERED
from deviceplugin.service import build
from deviceplugin.settings import DevicePluginSettings
from process.settings import load
from tests.deviceplugin.builders import FakeCards, a_card
from tests.support.mps import answering
from tests.support.nvml import MPS_CONTROL, a_program
from tests.support.waiting import until_true


async def _run(loop: Awaitable[None]) -> None:
    await loop


async def test_it_is_ready_once_the_daemon_of_each_card_answers() -> None:
    cards = FakeCards(a_card("GPU-a"), a_card("GPU-b", index=1))
    with tempfile.TemporaryDirectory(prefix="fg-") as name:
        folder = Path(name)
        words = ["--mode=mps", "--node-name=n", f"--mps-dir={folder}/mps", "--telemetry-port=0"]
        words.append(f"--mps-program={a_program(folder, MPS_CONTROL)}")
        settings = load(DevicePluginSettings, words, {}, program="deviceplugin")
        service = build(settings, cards)

        def ready() -> bool:
            checks = service.gate.readiness().checks
            return checks["cards"] is None and checks["daemons"] is None

        async with service.open() as running, asyncio.TaskGroup() as group:
            assert not ready()
            tasks = [group.create_task(_run(task())) for task in running.tasks.values()]
            for card in ("GPU-a", "GPU-b"):
                await answering(folder / "mps", a_card(card).uuid)
            await until_true(ready, what="Ready", limit_s=60)
            for task in tasks:
                task.cancel()

        assert not list((folder / "mps").glob(f"*/{ANSWERED}"))
        assert cards.closed
