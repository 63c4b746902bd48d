"""The pod of the MPS daemons: one for each card, Ready once each answers, all gone at its end."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from deviceplugin.cards.interface import CardList, CardsUnavailableError
from deviceplugin.container.mps import ANSWERED
from deviceplugin.container.mps_daemons import MpsDaemons, SurveyBesideDaemons
from deviceplugin.service import build
from deviceplugin.settings import DevicePluginSettings
from fracgpu.cards.card import CardUuid
from process.clock import SystemClock
from process.lifecycle import EndProcess
from process.settings import load
from simulator.background import background
from tests.deviceplugin.builders import FakeCards, a_card, a_tracker
from tests.fakes.clock import VirtualClock
from tests.support.mps import answering
from tests.support.nvml import (
    MPS_CONTROL,
    ProcessEnds,
    Standin,
    Unavailable,
    a_program,
    a_standin,
)
from tests.support.nvml import build as build_standin
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


class StandinCards(FakeCards):
    """The cards of a stand-in for NVIDIA's library, which may hang."""

    def __init__(self, standin: Standin) -> None:
        super().__init__(a_card(standin.uuid(0)), a_card(standin.uuid(1), index=1))
        self._standin = standin
        self.ends = 0

    async def list_cards(self) -> CardList:
        try:
            await self._standin.list_cards()
        except Unavailable as error:
            raise CardsUnavailableError(str(error)) from error
        except ProcessEnds as error:
            self.ends += 1
            raise EndProcess(str(error)) from error
        return await super().list_cards()


@asynccontextmanager
async def hanging(folder: Path) -> AsyncIterator[tuple[Standin, StandinCards]]:
    library = build_standin(folder / "library")
    async with a_standin(folder, library=library, timeout_s=0.3) as standin:
        yield standin, StandinCards(standin)


def started(folder: Path) -> list[str]:
    """Return what each daemon wrote of its starts."""
    return [log.read_text() for log in sorted(folder.glob("*/log/control.log"))]


def count_hangs(problem: str | None) -> bool:
    """Report whether it is the count of cards that hangs, and no call that a busy machine delays.

    Such a call returns, and then the driver counts as one that has answered.
    """
    return "nvmlDeviceGetCount" in (problem or "")


async def test_while_nvml_hangs_the_daemons_stay_as_long_as_they_answer(tmp_path: Path) -> None:
    async with hanging(tmp_path) as (standin, cards):
        with tempfile.TemporaryDirectory(prefix="fg-") as name:
            folder = Path(name)
            tracker = a_tracker(cards, SystemClock(), period_s=0.05)
            daemons = MpsDaemons(
                folder,
                cards=lambda: [each.uuid for each in tracker.inventory.cards],
                program=str(a_program(folder, MPS_CONTROL)),
                clock=SystemClock(),
            )
            survey = SurveyBesideDaemons(tracker, daemons, SystemClock(), period_s=0.05)
            async with background(*(_run(part()) for part in (survey.run, daemons.run))):
                for uuid in (standin.uuid(0), standin.uuid(1)):
                    await answering(folder, CardUuid(uuid))
                await until_true(lambda: daemons.serve, what="a daemon answers", limit_s=60)
                before = started(folder)

                standin.say({"hang.nvmlDeviceGetCount_v2": 1})
                await until_true(
                    lambda: count_hangs(survey.problem), what="the count hangs", limit_s=60
                )
                await standin.ask("wait 90")
                await until_true(lambda: cards.ends >= 2, what="it would end twice", limit_s=60)
                assert started(folder) == before
                assert len(before) == 2

                standin.say({"hang.nvmlDeviceGetCount_v2": None})
                await until_true(lambda: survey.problem is None, what="it goes on", limit_s=60)


class LostCards(FakeCards):
    """Cards whose driver may be lost from one listing to the next."""

    lost = False

    async def list_cards(self) -> CardList:
        if self.lost:
            raise EndProcess("the library is outdated")
        return await super().list_cards()


class SomeDaemons(MpsDaemons):
    """Daemons of which one answers, or none does."""

    answers = True

    @property
    def serve(self) -> bool:
        return self.answers


async def test_a_lost_driver_is_told_and_one_late_answer_does_not_end_the_process(
    tmp_path: Path,
) -> None:
    clock, cards = VirtualClock(), LostCards(a_card())
    tracker = a_tracker(cards, clock)
    daemons = SomeDaemons(tmp_path, cards=list, program="none", clock=clock)
    survey = SurveyBesideDaemons(tracker, daemons, clock, period_s=10)
    ends: list[str] = []
    problems: list[str | None] = []

    async def run() -> None:
        try:
            await survey.run()
        except EndProcess as end:
            ends.append(str(end))

    async with asyncio.TaskGroup() as group:
        group.create_task(run())
        await clock.advance(1)
        problems.append(survey.problem)

        cards.lost = True
        await clock.advance(60)
        problems.append(survey.problem)

        daemons.answers = False
        await clock.advance(10)
        daemons.answers = True
        await clock.advance(60)
        assert not ends

        cards.lost = False
        await clock.advance(20)
        problems.append(survey.problem)

        cards.lost, daemons.answers = True, False
        await clock.advance(30)
        assert ends == ["the library is outdated"]
    assert problems == [None, "the library is outdated", None]


async def test_where_no_daemon_answers_the_process_ends_and_another_calls_the_library(
    tmp_path: Path,
) -> None:
    async with hanging(tmp_path) as (standin, cards):
        tracker = a_tracker(cards, SystemClock(), period_s=0.05)
        daemons = MpsDaemons(tmp_path, cards=list, program="none", clock=SystemClock())
        survey = SurveyBesideDaemons(tracker, daemons, SystemClock(), period_s=0.05)
        standin.say({"hang.nvmlDeviceGetCount_v2": 1})
        while not count_hangs(tracker.problem):
            await tracker.refresh()
        await standin.ask("wait 90")

        with pytest.raises(EndProcess, match="has not answered for 90 s"):
            async with asyncio.timeout(60):
                await survey.run()
