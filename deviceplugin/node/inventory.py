"""The node's cards as last seen, and the slots that kubelet counts; health falls and rises."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import structlog

from deviceplugin.cards.interface import (
    CardHardware,
    CardList,
    Cards,
    CardsUnavailableError,
    DeviceNode,
)
from fracgpu.cards.card import Card, CardUuid, Health
from fracgpu.units import Mib
from process.clock import Clock

log = structlog.get_logger()

# One survey that fails may be a driver taking its time; three in a row are a driver lost.
_FAILURES_UNTIL_UNHEALTHY: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A device as kubelet counts them; it belongs to no card, so its id says nothing."""

    id: str
    healthy: bool
    numa_nodes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """The cards of the node at one moment, the administrator's headroom taken off."""

    card_list: CardList = field(default_factory=CardList)

    @property
    def cards(self) -> tuple[Card, ...]:
        return tuple(hardware.card for hardware in self.card_list.cards)

    def by_uuid(self) -> Mapping[CardUuid, Card]:
        return {card.uuid: card for card in self.cards}

    def device_nodes(self, cards: tuple[Card, ...]) -> tuple[DeviceNode, ...]:
        """Name the device files that a container with *cards* needs, the common ones last."""
        facts = {it.card.uuid: it for it in self.card_list.cards}
        own = [node for card in cards for node in facts[card.uuid].device_nodes]
        return (*own, *self.card_list.common_nodes)


def slots(inventory: Inventory, *, count: int) -> tuple[Slot, ...]:
    """Give *count* slots, healthy while any card is.

    A slot carries no card, so one sick card cannot make "its" slots sick: gpu-mem and the
    scheduler keep new pods off it, and PreStart refuses it. Containers keep their slots.
    """
    healthy = any(card.health is Health.HEALTHY for card in inventory.cards)
    return tuple(Slot(id=f"slot-{number:04d}", healthy=healthy) for number in range(count))


def with_headroom(card_list: CardList, *, headroom_mib: Mib) -> CardList:
    """Reserve *headroom_mib* more of each card."""
    if not headroom_mib:
        return card_list
    return replace(card_list, cards=tuple(_reserve(it, headroom_mib) for it in card_list.cards))


def with_slots(card_list: CardList, *, slots: int) -> CardList:
    """Say how many containers may hold each card."""
    cards = (replace(it, card=replace(it.card, slots=slots)) for it in card_list.cards)
    return replace(card_list, cards=tuple(cards))


def _reserve(hardware: CardHardware, headroom_mib: Mib) -> CardHardware:
    reserved_mib = Mib(hardware.card.reserved_mib + headroom_mib)
    return replace(hardware, card=replace(hardware.card, reserved_mib=reserved_mib))


def all_unhealthy(card_list: CardList, *, reason: str) -> CardList:
    """Say of every card that it cannot take new slices."""
    return replace(
        card_list,
        cards=tuple(
            replace(it, card=replace(it.card, health=Health.UNHEALTHY, health_reason=reason))
            for it in card_list.cards
        ),
    )


def with_health_reasons(card_list: CardList, ailments: Mapping[CardUuid, str]) -> CardList:
    """Say of the cards that *ailments* names that they cannot take new slices, and why."""
    return replace(
        card_list, cards=tuple(_ail(it, ailments.get(it.card.uuid)) for it in card_list.cards)
    )


def _ail(hardware: CardHardware, reason: str | None) -> CardHardware:
    if not reason:
        return hardware
    if hardware.card.health is not Health.HEALTHY and hardware.card.health_reason not in reason:
        reason = f"{hardware.card.health_reason}; {reason}"
    card = replace(hardware.card, health=Health.UNHEALTHY, health_reason=reason)
    return replace(hardware, card=card)


class InventoryTracker:
    """What the node has now; readers wait here for a change.

    Args:
        cards: whom to ask.
        clock: paces the surveys.
        period_s: between two surveys.
        slots_per_card: how many containers may share one card at a time.
        headroom_mib: MiB of each card that are never handed out.
        ailments: what else speaks against cards at this moment, beyond the survey itself.
        beat: called before each survey.
        on_survey: told of each survey whether it succeeded.
    """

    def __init__(  # noqa: PLR0913 - its parts, nearly all by keyword; made once, in service.py
        self,
        cards: Cards,
        clock: Clock,
        *,
        period_s: float,
        slots_per_card: int,
        headroom_mib: Mib,
        ailments: Callable[[], Mapping[CardUuid, str]] = dict,
        beat: Callable[[], None] = lambda: None,
        on_survey: Callable[[bool], None] = lambda _: None,
    ) -> None:
        self._cards = cards
        self._clock = clock
        self._period_s = period_s
        self._slots_per_card = slots_per_card
        self._headroom_mib = headroom_mib
        self._ailments = ailments
        self._beat = beat
        self._on_survey = on_survey
        self._inventory = Inventory()
        self._most_cards = 0
        self._failures = 0
        self._problem: str | None = "the cards have not been looked at yet"
        self._changed = asyncio.Event()

    @property
    def inventory(self) -> Inventory:
        return self._inventory

    @property
    def problem(self) -> str | None:
        """Why the cards cannot be asked, or None."""
        return self._problem

    @property
    def lost(self) -> bool:
        """Whether nobody has been able to say for a while which cards there are."""
        return self._failures >= _FAILURES_UNTIL_UNHEALTHY

    def slots(self) -> tuple[Slot, ...]:
        """Give the slots that kubelet should count.

        Their number never shrinks while we run: a container may hold any of them.
        """
        return slots(self._inventory, count=self._most_cards * self._slots_per_card)

    async def changes(self) -> AsyncGenerator[Inventory, None]:
        """Yield the stock now, and again after each change, for ever."""
        while True:
            changed, inventory = self._changed, self._inventory
            yield inventory
            if self._inventory == inventory:
                await changed.wait()

    def wake_readers(self) -> None:
        """Yield the stock once more to everybody in :meth:`changes`, changed or not."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def run(self) -> None:
        """Survey the cards until cancelled."""
        while True:
            self._beat()
            await self.survey()
            await self._clock.sleep(self._period_s)

    async def survey(self) -> None:
        """Look once; a driver that does not answer makes the cards unhealthy in the end."""
        try:
            card_list = await self._cards.list_cards()
        except CardsUnavailableError as error:
            self._on_survey(False)  # noqa: FBT003 - a metric's value
            self._fail(str(error))
            return
        self._on_survey(True)  # noqa: FBT003 - a metric's value
        answers_again, self._problem = self._problem is not None, None
        self._failures = 0
        shared = with_slots(
            with_headroom(card_list, headroom_mib=self._headroom_mib), slots=self._slots_per_card
        )
        self._set(Inventory(card_list=with_health_reasons(shared, self._ailments())))
        if answers_again:
            self.wake_readers()

    def _fail(self, reason: str) -> None:
        self._failures += 1
        if self._problem != reason:
            log.warning("cards_not_surveyed", reason=reason)
        self._problem = reason
        if self.lost:
            self._set(Inventory(card_list=all_unhealthy(self._inventory.card_list, reason=reason)))
        if self._failures == _FAILURES_UNTIL_UNHEALTHY:
            # The stock may be the same, none seen as yet; what is to be said of it is not.
            self.wake_readers()

    def _set(self, inventory: Inventory) -> None:
        if inventory == self._inventory:
            return
        self._tell(inventory)
        self._most_cards = max(self._most_cards, len(inventory.cards))
        self._inventory = inventory
        self.wake_readers()

    def _tell(self, inventory: Inventory) -> None:
        before, after = self._inventory.by_uuid(), inventory.by_uuid()
        for uuid in sorted(before.keys() - after.keys()):
            log.warning("card_vanished", card=uuid)
        for uuid, card in after.items():
            old = before.get(uuid)
            if old is None:
                log.info("card_found", card=uuid, model=card.model, capacity_mib=card.capacity_mib)
            elif old.health is not card.health:
                log.warning(
                    "card_health_changed",
                    card=uuid,
                    health=card.health.value,
                    reason=card.health_reason,
                )
        for it in inventory.card_list.left_out:
            if it not in self._inventory.card_list.left_out:
                log.warning("card_left_out", card=it.uuid, reason=it.reason)
