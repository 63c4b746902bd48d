"""Implements `deviceplugin.cards.interface` with NVIDIA's management library."""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import pynvml
import structlog

from deviceplugin.cards.call_thread import StuckError, settled
from deviceplugin.cards.interface import (
    CardHardware,
    CardList,
    Cards,
    CardSample,
    CardSamples,
    CardsUnavailableError,
    DeviceNode,
    SkippedCard,
    unhealthy,
)
from deviceplugin.cards.nvml.calls import NvmlCalls, driver_is_lost, library_is_outdated
from deviceplugin.cards.nvml.card import FoundCard, NvmlCard
from deviceplugin.cards.nvml.limits import NvmlLimits
from deviceplugin.cards.nvml.topology import CardLocation, NvmlTopology
from deviceplugin.cards.nvml.xid_events import XidWatch
from deviceplugin.cards.reserve import LearntReserve
from fracgpu.cards.card import MOST_CARDS, CardUuid
from process.clock import Clock, SystemClock
from process.lifecycle import EndProcess

log = structlog.get_logger()

_T = TypeVar("_T")

_COMMON_NODES: Final = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
# A visit of one card is some forty calls of a millisecond each; it may take as long as the limit of
# two calls.
_CALLS_IN_A_VISIT: Final = 2
# A process that started while the driver was being replaced first has time to report that no card
# can be used.
_OUTDATED_AT_START_LIMIT_S: Final = 60.0


class NvmlReader(Cards):
    """Cards through NVML, each called in a thread of its own.

    Args:
        timeout_s: limit of one call; all calls of one visit of a card may take twice that.
        hang_limit_s: the process ends when the driver itself has hung for as long.
        dev_root: where the host's device files are.
        sys_root: where the host's ``/sys`` is.
        clock: for durations, and to recognise samples that were read before.
    """

    def __init__(
        self,
        *,
        timeout_s: float = 5.0,
        hang_limit_s: float = 90.0,
        dev_root: Path = Path("/dev"),
        sys_root: Path = Path("/sys"),
        clock: Clock | None = None,
    ) -> None:
        self._nvml: Any = pynvml
        self._timeout_s = timeout_s
        self._hang_limit_s = hang_limit_s
        self._dev_root = dev_root
        self._sys_root = sys_root
        self._clock = clock or SystemClock()
        calls = functools.partial(NvmlCalls, pynvml, timeout_s=timeout_s, clock=self._clock)
        self._calls = calls()
        self._event_calls = calls(name="nvml-events")
        self._topology_calls = calls(name="nvml-topology")
        self._topology = NvmlTopology(self._topology_calls)
        self._xids = XidWatch(pynvml, self._clock)
        self._limits = NvmlLimits(pynvml, timeout_s=timeout_s)
        self._ready = False
        self._begun = False  # used only in the thread of the calls
        self._opening = asyncio.Lock()
        self._worked = False
        self._outdated_since_s: float | None = None
        self._hangs_since_s: float | None = None
        self._cards: dict[int, NvmlCard] = {}
        self._reserves: dict[CardUuid, LearntReserve] = {}
        self._hardware: dict[int, CardHardware] = {}

    @property
    def limits(self) -> NvmlLimits:
        return self._limits

    async def list_cards(self) -> CardList:
        await self._open()
        driver = await self._driver(self._nvml.nvmlSystemGetDriverVersion)
        count = await self._driver(self._nvml.nvmlDeviceGetCount)
        if count > MOST_CARDS:
            raise CardsUnavailableError(f"NVML: it has {count} cards; want {MOST_CARDS} at most")
        answers = await self._of_each({index: self._look(index) for index in range(count)})
        found = [answer for answer in answers.values() if isinstance(answer, FoundCard)]
        reached = {answer.hardware.card.uuid: answer for answer in found}
        if len(reached) < len(found):
            raise CardsUnavailableError("NVML: one card has two indexes, as while these change")
        cards: dict[int, CardHardware] = {}
        left_out: list[SkippedCard] = []
        for index, answer in answers.items():
            match answer:
                case FoundCard():
                    cards[index] = answer.hardware
                case SkippedCard():
                    left_out.append(answer)
                case Exception():
                    self._add_unreached(index, answer, reached, cards, left_out)
        cards |= await self._linked(cards, reached)
        await self._watch_xids(reached)
        self._hardware = cards
        common = self._common_nodes()
        return CardList(
            cards=tuple(
                replace(hardware, common_nodes=common, driver=driver) for hardware in cards.values()
            ),
            left_out=tuple(left_out),
        )

    async def read(self) -> CardSamples:
        await self._open()
        uuids = {index: hardware.card.uuid for index, hardware in self._hardware.items()}
        answers = await self._of_each(
            {index: self._read(index, uuid) for index, uuid in uuids.items()}
        )
        samples: dict[CardUuid, CardSample] = {}
        errors: dict[CardUuid, Exception] = {}
        for index, answer in answers.items():
            uuid = uuids[index]  # another card may have the index by now
            if isinstance(answer, Exception):
                errors[uuid] = answer
            else:
                samples[uuid] = answer
        texts = {uuid: str(error) for uuid, error in errors.items()}
        hangs = any(isinstance(error, StuckError) for error in errors.values())
        if texts and not samples and not hangs:
            # A driver that is gone often returns an error for each card and none for itself.
            await self._lost(f"no card can be read: {'; '.join(sorted(set(texts.values())))}")
        return CardSamples(samples=samples, errors=texts)

    async def close(self) -> None:
        if self._ready:
            self._ready = False
            await self._shut_down()

    # -- the cards -----------------------------------------------------------------------------

    async def _of_each(
        self, work: Mapping[int, Callable[[], Awaitable[_T]]]
    ) -> Mapping[int, _T | Exception]:
        """Run the work of all cards at once; return for each card what its work returns or raises.

        Raises:
            CardsUnavailableError, EndProcess: an error means that the driver as a whole is lost.
        """
        answers = await settled(
            {index: functools.partial(self._visit, each) for index, each in work.items()}
        )
        for answer in answers.values():
            if isinstance(answer, Exception):
                await self._end_if_lost(answer)
        return answers

    async def _visit(self, work: Callable[[], Awaitable[_T]]) -> _T | Exception:
        limit_s = _CALLS_IN_A_VISIT * self._timeout_s
        try:
            async with asyncio.timeout(limit_s):
                return await work()
        except TimeoutError:
            return StuckError(f"it took longer than {limit_s:g} s to answer")
        except (StuckError, self._nvml.NVMLError) as error:
            return error

    def _look(self, index: int) -> Callable[[], Awaitable[FoundCard | SkippedCard]]:
        if index not in self._cards:
            self._cards[index] = NvmlCard(
                self._nvml,
                index=index,
                timeout_s=self._timeout_s,
                sys_root=self._sys_root,
                clock=self._clock,
                reserves=self._reserves,
            )
        card = self._cards[index]
        return lambda: card.inspect(self._hardware.get(index))

    def _read(self, index: int, uuid: CardUuid) -> Callable[[], Awaitable[CardSample]]:
        card = self._cards[index]

        async def read() -> CardSample:
            sample = await card.read(uuid)
            figures = replace(sample.figures, xid=self._xids.last(uuid))
            return replace(sample, figures=figures, xids=self._xids.counts(uuid))

        return read

    def _add_unreached(
        self,
        index: int,
        error: Exception,
        reached: Mapping[CardUuid, FoundCard],
        cards: dict[int, CardHardware],
        left_out: list[SkippedCard],
    ) -> None:
        """Add a card that does not answer: unhealthy if it is known, else left out."""
        known = self._hardware.get(index)
        if known is not None and known.card.uuid not in reached:
            cards[index] = unhealthy(known, f"it does not answer: {error}")
            return
        left_out.append(SkippedCard(uuid=f"card {index}", reason=f"it does not answer: {error}"))

    async def _linked(
        self, cards: Mapping[int, CardHardware], reached: Mapping[CardUuid, FoundCard]
    ) -> Mapping[int, CardHardware]:
        """Return the cards that can be reached with their distances to each other."""
        locations = {
            uuid: CardLocation(handle=found.handle, bus_id=found.hardware.pci_bus_id)
            for uuid, found in reached.items()
        }
        distances = await self._visit(lambda: self._topology.distances(locations))
        if isinstance(distances, Exception):
            await self._end_if_lost(distances)
            log.warning("links_not_readable", reason=str(distances))
            return {}
        return {
            index: replace(
                hardware, card=replace(hardware.card, links=distances[hardware.card.uuid])
            )
            for index, hardware in cards.items()
            if hardware.card.uuid in distances
        }

    async def _watch_xids(self, reached: Mapping[CardUuid, FoundCard]) -> None:
        handles = {str(uuid): found.handle for uuid, found in reached.items()}
        try:
            await self._event_calls.call(self._xids.keep, handles)
        except StuckError as error:
            log.warning("xid_watch_not_started", reason=str(error))

    def _common_nodes(self) -> tuple[DeviceNode, ...]:
        return tuple(
            DeviceNode(path=f"/dev/{name}")
            for name in _COMMON_NODES
            if (self._dev_root / name).exists()
        )

    # -- the driver ----------------------------------------------------------------------------

    async def _open(self) -> None:
        async with self._opening:
            await self._open_once()

    async def _open_once(self) -> None:
        if self._ready:
            return
        await self._driver(self._nvml_init)
        self._ready = self._worked = True
        self._outdated_since_s = None
        self._topology_calls.forget()
        for card in self._cards.values():
            card.forget()
        self._reserves.clear()
        self._topology.forget()
        log.info("nvml_opened")

    async def _driver(self, function: Callable[..., Any]) -> Any:
        """Call a function of the driver, not of a card: any error means that the driver is lost."""
        try:
            answer = await self._calls.call(function)
        except StuckError as error:
            self._end_if_hanging(error)
            raise CardsUnavailableError(f"NVML hangs: {error}") from error
        except self._nvml.NVMLError as error:
            self._hangs_since_s = None
            self._end_if_outdated(error)
            await self._lost(str(error))
        self._hangs_since_s = None
        return answer

    def _end_if_hanging(self, error: StuckError) -> None:
        """Raise EndProcess once the driver has hung for too long: the call may never return.

        A new process has a new thread for it. Where the driver hangs in the kernel, the new process
        hangs as well, and kubelet backs off longer and longer before it starts the next one.
        """
        now_s = self._clock.monotonic()
        if self._hangs_since_s is None:
            self._hangs_since_s = now_s
        if now_s - self._hangs_since_s >= self._hang_limit_s:
            raise EndProcess(
                f"NVML hangs: {error}; the driver has not answered for {self._hang_limit_s:g} s, "
                "and a new process has to call it"
            )

    async def _end_if_lost(self, error: Exception) -> None:
        if driver_is_lost(error):
            self._end_if_outdated(error)
            await self._lost(str(error))

    def _end_if_outdated(self, error: Exception) -> None:
        """Raise EndProcess if our library is older or newer than the driver in the kernel.

        NVML: "the driver and the library version mismatch". A restarted container gets the library
        that goes with the driver.
        """
        if not library_is_outdated(error):
            return
        now_s = self._clock.monotonic()
        if self._outdated_since_s is None:
            self._outdated_since_s = now_s
        if self._worked or now_s - self._outdated_since_s >= _OUTDATED_AT_START_LIMIT_S:
            raise EndProcess(
                f"NVML: {error}: the driver was replaced; a new process has to load its library"
            )

    async def _lost(self, reason: str) -> NoReturn:
        """Shut down and raise; the next call initialises NVML again, as a reloaded driver needs."""
        if self._ready:
            self._ready = False
            log.warning("nvml_lost", reason=reason)
            await self._shut_down()
        raise CardsUnavailableError(f"NVML: {reason}")

    async def _shut_down(self) -> None:
        """Release everything; errors of a lost driver or a hanging card are only logged.

        All cards at once: sixteen that hang take no longer than one, the limit of three calls.
        """
        closes = (*(card.close for card in self._cards.values()), self._stop_watch)
        async with self._opening:
            visits = {at: functools.partial(self._visit, each) for at, each in enumerate(closes)}
            answers = await settled(visits)
            library = await self._visit(self._shut_library)
        for answer in (*answers.values(), library):
            if answer is not None:
                log.info("nvml_not_shut_down", reason=str(answer))

    async def _stop_watch(self) -> None:
        await self._event_calls.call(self._xids.stop)

    async def _shut_library(self) -> None:
        await self._calls.call(self._nvml_shutdown)

    def _nvml_init(self) -> None:
        """Initialise NVML, unless an earlier call that timed out did so later on.

        NVML counts: it releases the driver only once it was shut down as often as initialised
        (NVML's reference, ``nvmlInit_v2``).
        """
        if not self._begun:
            self._nvml.nvmlInit()
            self._begun = True

    def _nvml_shutdown(self) -> None:
        if self._begun:
            self._begun = False
            self._nvml.nvmlShutdown()
