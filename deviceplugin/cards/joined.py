"""The cards of all vendors whose cards a node has, each read by its own reader."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, TypeVar

from deviceplugin.cards.call_thread import CallThread, StuckError, settled
from deviceplugin.cards.interface import (
    CardHardware,
    CardLimits,
    CardLimitsError,
    CardList,
    Cards,
    CardSamples,
    CardsUnavailableError,
    GroupLimits,
    SkippedCard,
    all_unhealthy,
)
from fracgpu.cards.card import CardUuid
from process.lifecycle import EndProcess

_T = TypeVar("_T")

# One failed listing may be a slow driver, as for a node with one vendor.
_FAILURES_UNTIL_LOST: Final = 3

# Of PCI's classes, in the highest byte: display controllers.
_DISPLAY: Final = 0x03
_CLASS_SHIFT: Final = 16


def has_pci_card(sys_root: Path, *, vendor: int) -> bool:
    """Report whether a PCI device of *vendor* is a display controller, with or without a driver.

    Source: ``vendor`` and ``class`` in the kernel's ``Documentation/ABI/testing/sysfs-bus-pci``.

    Raises:
        OSError: the devices cannot be listed.
    """
    try:
        folders = list((sys_root / "bus/pci/devices").iterdir())
    except FileNotFoundError:  # a machine without PCI
        return False
    return any(
        _hex(folder / "vendor") == vendor
        and (_hex(folder / "class") or 0) >> _CLASS_SHIFT == _DISPLAY
        for folder in folders
    )


def _hex(file: Path) -> int | None:
    try:
        return int(file.read_text(), 16)
    except (OSError, ValueError):  # it was removed meanwhile
        return None


@dataclass(slots=True, kw_only=True)
class VendorReader:
    """One vendor's reader.

    Attributes:
        present: whether the node has cards of this vendor; reads files.
        name: of the vendor, for people.
        listed: the cards that it listed last.
        last: its last list.
        failures: how often in a row it could not list its cards.
    """

    cards: Cards
    present: Callable[[], bool]
    name: str
    listed: frozenset[CardUuid] = field(default=frozenset())
    last: CardList = field(default_factory=CardList)
    failures: int = 0

    def lost(self, reason: str) -> CardList:
        """Return what is known of the cards while they cannot be listed: unknown is never free."""
        missing = SkippedCard(uuid=f"every card of {self.name}", reason=reason)
        return replace(
            all_unhealthy(self.last, reason=reason),
            left_out=self.last.left_out if self.last.cards else (missing,),
        )


class _Limits(CardLimits):
    """Asks the reader that has the card."""

    def __init__(self, vendors: Sequence[VendorReader]) -> None:
        self._vendors = vendors

    def set(self, card: CardUuid, group: str, limits: GroupLimits) -> None:
        self._of(card).set(card, group, limits)

    def read(self, card: CardUuid, group: str) -> GroupLimits:
        return self._of(card).read(card, group)

    def _of(self, card: CardUuid) -> CardLimits:
        for vendor in self._vendors:
            if card in vendor.listed and vendor.cards.limits is not None:
                return vendor.cards.limits
        raise CardLimitsError("the driver does not limit cgroups on this card")


class JoinedCards(Cards):
    """The cards of several readers as those of one node.

    A reader is asked while the node has cards of its vendor. Where one of them fails, the listing
    fails, and no card counts as gone; where it goes on failing and another does not, its cards are
    unhealthy, or left out if it never listed any, and the others' cards can be given.

    Args:
        vendors: the readers, in the order in which their cards are numbered.
        fallback: the one that is asked where the node has cards of none of them, and says why.
        timeout_s: limit of looking which cards the node has.
    """

    def __init__(
        self, vendors: Sequence[VendorReader], *, fallback: VendorReader, timeout_s: float = 5.0
    ) -> None:
        self._vendors = tuple(vendors)
        self._fallback = fallback
        self._timeout_s = timeout_s
        self._thread = CallThread("cards-present")
        self._limits = _Limits(self._vendors)

    @property
    def limits(self) -> CardLimits | None:
        return self._limits

    async def list_cards(self) -> CardList:
        try:
            there = await self._thread.call(self._present, timeout_s=self._timeout_s)
        except (OSError, StuckError) as error:
            raise CardsUnavailableError(f"cannot tell which cards there are: {error}") from error
        answers = await _all(vendor.cards.list_cards for vendor in there)
        lists = _lists(there, answers)
        parts = {id(vendor): part for vendor, part in zip(there, lists, strict=True)}
        for vendor in self._vendors:  # each set once: threads ask whose a card is
            found = parts.get(id(vendor), CardList()).cards
            vendor.listed = frozenset(hardware.card.uuid for hardware in found)
        return joined(lists)

    async def read(self) -> CardSamples:
        asked = [vendor for vendor in self._vendors if vendor.listed]
        answers = await _all(vendor.cards.read for vendor in asked)
        found, failed = CardSamples(), list[CardsUnavailableError]()
        for vendor, answer in zip(asked, answers, strict=True):
            if isinstance(answer, CardSamples):
                part = answer
            elif isinstance(answer, CardsUnavailableError):
                failed.append(answer)
                part = CardSamples(errors=dict.fromkeys(vendor.listed, str(answer)))
            else:
                raise answer
            found = CardSamples(
                samples={**found.samples, **part.samples}, errors={**found.errors, **part.errors}
            )
        if failed and len(failed) == len(asked):
            raise failed[0]
        return found

    async def close(self) -> None:
        for vendor in self._vendors:
            await vendor.cards.close()

    def _present(self) -> tuple[VendorReader, ...]:
        there = tuple(vendor for vendor in self._vendors if vendor.present())
        return there or (self._fallback,)


def _lists(
    vendors: Sequence[VendorReader],
    answers: Sequence[CardList | Exception],
) -> list[CardList]:
    """Return each vendor's list.

    Raises:
        CardsUnavailableError: none could be listed, or one for the first times.
        EndProcess: a reader cannot go on.
    """
    lists, failed = [], list[tuple[VendorReader, CardsUnavailableError]]()
    for vendor, answer in zip(vendors, answers, strict=True):
        if isinstance(answer, CardList):
            vendor.last, vendor.failures = answer, 0
            lists.append(answer)
        elif isinstance(answer, CardsUnavailableError):
            vendor.failures += 1
            lists.append(vendor.lost(str(answer)))
            failed.append((vendor, answer))
        else:
            raise answer
    for vendor, error in failed:
        if vendor.failures < _FAILURES_UNTIL_LOST or len(failed) == len(vendors):
            raise error
    return lists


async def _all(calls: Iterable[Callable[[], Awaitable[_T]]]) -> Sequence[_T | Exception]:
    """Await all calls at once; return what each returns or raises."""
    answers = await settled(dict(enumerate(calls)), CardsUnavailableError, EndProcess)
    return tuple(answers.values())


def joined(lists: Sequence[CardList]) -> CardList:
    """Return several lists as one."""
    cards: list[CardHardware] = []
    for each in lists:
        first = max((hardware.card.index + 1 for hardware in cards), default=0)
        cards += (
            replace(hardware, card=replace(hardware.card, index=first + hardware.card.index))
            for hardware in each.cards
        )
    return CardList(
        cards=tuple(cards),
        left_out=tuple(skipped for each in lists for skipped in each.left_out),
    )
