"""The node's cards as last seen, and the slots that kubelet counts."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Final

import structlog

from deviceplugin.cards.interface import (
    CardHardware,
    CardList,
    Cards,
    CardsUnavailableError,
    DeviceNode,
    all_unhealthy,
    unhealthy,
)
from fracgpu.cards.card import Card, CardUuid, Health
from fracgpu.units import Mib
from process.clock import Clock
from process.lifecycle import EndProcess

log = structlog.get_logger()

# One failed listing may be a slow driver; after three in a row the driver counts as lost.
_FAILURES_UNTIL_UNHEALTHY: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A device as kubelet counts them; it belongs to no card, and its id means nothing."""

    id: str
    healthy: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What is said against cards beyond what their listing says.

    Attributes:
        reasons: why they are unhealthy.
        errors: those of the reasons that the driver does not say any more.
    """

    reasons: Mapping[CardUuid, str] = field(default_factory=dict)
    errors: Mapping[CardUuid, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """The cards of the node at one moment, without the administrator's headroom."""

    card_list: CardList = field(default_factory=CardList)

    @property
    def cards(self) -> tuple[Card, ...]:
        return tuple(hardware.card for hardware in self.card_list.cards)

    def by_uuid(self) -> Mapping[CardUuid, Card]:
        return {card.uuid: card for card in self.cards}

    def device_nodes(self, cards: tuple[Card, ...]) -> tuple[DeviceNode, ...]:
        """Return the device files that a container with *cards* needs, the common ones last."""
        hardware = self.hardware(cards)
        own = [node for each in hardware for node in each.device_nodes]
        common = [node for each in hardware for node in each.common_nodes]
        return tuple(dict.fromkeys((*own, *common)))

    def hardware(self, cards: Iterable[Card]) -> tuple[CardHardware, ...]:
        """Return what is known of *cards*, in their order."""
        facts = {hardware.card.uuid: hardware for hardware in self.card_list.cards}
        return tuple(facts[card.uuid] for card in cards)


def slots(inventory: Inventory, *, count: int) -> tuple[Slot, ...]:
    """Return *count* slots, healthy while any card is.

    A slot belongs to no card, so an unhealthy card makes no slot unhealthy: gpu-mem and the
    scheduler keep new pods off it, and PreStart rejects it. Containers keep their slots.
    """
    healthy = any(card.health is Health.HEALTHY for card in inventory.cards)
    return tuple(Slot(id=f"slot-{number:04d}", healthy=healthy) for number in range(count))


def with_headroom(listed: CardList, *, headroom_mib: Mib) -> CardList:
    """Return the cards with *headroom_mib* more reserved on each."""
    if not headroom_mib:
        return listed
    return replace(
        listed, cards=tuple(_reserve(hardware, headroom_mib) for hardware in listed.cards)
    )


def with_slots(listed: CardList, *, slots: int) -> CardList:
    """Return the cards with *slots*, the most containers that may hold each."""
    cards = (
        replace(hardware, card=replace(hardware.card, slots=slots)) for hardware in listed.cards
    )
    return replace(listed, cards=tuple(cards))


def _reserve(hardware: CardHardware, headroom_mib: Mib) -> CardHardware:
    reserved_mib = Mib(hardware.card.reserved_mib + headroom_mib)
    return replace(hardware, card=replace(hardware.card, reserved_mib=reserved_mib))


def judged(listed: CardList, judgement: Judgement) -> CardList:
    """Return the cards, those unhealthy against which something is said."""
    return replace(
        listed,
        cards=tuple(
            _with_errors(
                _with_reason(hardware, judgement.reasons.get(hardware.card.uuid)),
                judgement.errors.get(hardware.card.uuid, ()),
            )
            for hardware in listed.cards
        ),
    )


def _with_errors(hardware: CardHardware, errors: tuple[str, ...]) -> CardHardware:
    return replace(hardware, card=replace(hardware.card, errors=errors)) if errors else hardware


def _with_reason(hardware: CardHardware, reason: str | None) -> CardHardware:
    if not reason:
        return hardware
    if hardware.card.health is not Health.HEALTHY and hardware.card.health_reason not in reason:
        reason = f"{hardware.card.health_reason}; {reason}"
    return unhealthy(hardware, reason)


class InventoryTracker:
    """Lists the cards periodically and keeps the inventory; readers can wait for a change.

    Args:
        cards: lists them.
        clock: paces the listings.
        period_s: between two listings.
        slots_per_card: how many containers may share one card at a time.
        headroom_mib: MiB of each card that are never shared.
        judgement: what is said against cards beyond their listing; no card is known while it is
            None.
        beat: called before each listing.
        on_listed: called after each listing with whether it succeeded.
    """

    def __init__(  # noqa: PLR0913 - its parts, nearly all by keyword; made once, in service.py
        self,
        cards: Cards,
        clock: Clock,
        *,
        period_s: float,
        slots_per_card: int,
        headroom_mib: Mib,
        judgement: Callable[[], Judgement | None] = Judgement,
        beat: Callable[[], None] = lambda: None,
        on_listed: Callable[[bool], None] = lambda _: None,
    ) -> None:
        self._cards = cards
        self._clock = clock
        self._period_s = period_s
        self._slots_per_card = slots_per_card
        self._headroom_mib = headroom_mib
        self._judgement = judgement
        self._listed: CardList | None = None
        self._beat = beat
        self._on_listed = on_listed
        self._inventory = Inventory()
        self._most_cards = 0
        self._failures = 0
        self._problem: str | None = "the cards have not been listed yet"
        self._changed = asyncio.Event()

    @property
    def inventory(self) -> Inventory:
        return self._inventory

    @property
    def problem(self) -> str | None:
        """Why the cards cannot be listed, or None."""
        return self._problem

    @property
    def unseen(self) -> str | None:
        """Why no card is known, or None."""
        return None if self._inventory.cards else self._problem

    @property
    def lost(self) -> bool:
        """Whether the last listings all failed, so that the cards count as unhealthy."""
        return self._failures >= _FAILURES_UNTIL_UNHEALTHY

    def slots(self) -> tuple[Slot, ...]:
        """Return the slots that kubelet should count.

        Their number never shrinks while we run: a container may hold any of them.
        """
        return slots(self._inventory, count=self._most_cards * self._slots_per_card)

    async def changes(self) -> AsyncGenerator[Inventory, None]:
        """Yield the inventory now, and again after each change, forever."""
        while True:
            changed, inventory = self._changed, self._inventory
            yield inventory
            if self._inventory == inventory:
                await changed.wait()

    async def follow(self, on_change: Callable[[], None]) -> None:
        """Call *on_change* now, and after each change, until cancelled."""
        async with aclosing(self.changes()) as changes:
            async for _ in changes:
                on_change()

    def wake_readers(self) -> None:
        """Make :meth:`changes` yield the inventory to every reader once more, changed or not."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def run(self) -> None:
        """List the cards until cancelled."""
        while True:
            self._beat()
            await self.refresh()
            await self._clock.sleep(self._period_s)

    async def refresh(self) -> None:
        """List the cards once; after several failures in a row they are unhealthy."""
        try:
            listed = await self._cards.list_cards()
        except CardsUnavailableError as error:
            self._on_listed(False)  # noqa: FBT003 - a metric's value
            self._fail(str(error))
            return
        except EndProcess as end:
            self._problem = str(end)  # whoever runs us may go on
            raise
        self._on_listed(True)  # noqa: FBT003 - a metric's value
        self._failures = 0
        self._listed = with_slots(
            with_headroom(listed, headroom_mib=self._headroom_mib), slots=self._slots_per_card
        )
        self.judge()

    def judge(self) -> None:
        """Judge the cards of the last listing anew: something else is said against them by now."""
        if self._listed is None or self._failures:
            return
        judgement = self._judgement()
        if judgement is None:
            self._problem = "it is not known yet what the node says of its cards"
            return
        answers_again, self._problem = self._problem is not None, None
        self._set(Inventory(card_list=judged(self._listed, judgement)))
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
            # `lost` has changed, which readers look at too, even if the inventory has not.
            self.wake_readers()

    def _set(self, inventory: Inventory) -> None:
        if inventory == self._inventory:
            return
        self._log_changes(inventory)
        self._most_cards = max(self._most_cards, len(inventory.cards))
        self._inventory = inventory
        self.wake_readers()

    def _log_changes(self, inventory: Inventory) -> None:
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
        for skipped in inventory.card_list.left_out:
            if skipped not in self._inventory.card_list.left_out:
                log.warning("card_left_out", card=skipped.uuid, reason=skipped.reason)
