"""Sets a container's limits before its first process runs, and proves that they stand."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import structlog

from deviceplugin.cards.interface import CardHardware
from deviceplugin.enforcement.cgroups import group_of
from deviceplugin.enforcement.gate import Gate, GateError
from deviceplugin.enforcement.interface import EnforcementError, Enforcer, Limit
from deviceplugin.enforcement.promises import difference, promised_limits
from deviceplugin.nri.interface import Adjustment, Container
from fracgpu.cards.card import CardUuid
from fracgpu.state.allocation import Slice
from fracgpu.state.pod_info import PodInfo

log = structlog.get_logger()

OFF = "--limits is none"


class Limiter:
    """Limits by what can limit a card: the first of *enforcers* that is able to. In any thread.

    Args:
        enforcers: in the order in which they are preferred; none limits nothing.
        cards: the node's cards.
        gate: keeps containers back.
    """

    def __init__(
        self,
        enforcers: Sequence[Enforcer],
        *,
        cards: Callable[[], Mapping[CardUuid, CardHardware]],
        gate: Gate,
    ) -> None:
        self._enforcers = enforcers
        self._cards = cards
        self._gate = gate
        self._by_card: dict[CardUuid, Enforcer | str] = {}

    def refresh(self) -> None:
        """Probe anew what can limit each card."""
        found = {uuid: self._find(card) for uuid, card in self._cards().items()}
        if found != self._by_card:
            for uuid, enforcer in found.items():
                known = enforcer if isinstance(enforcer, str) else None
                by = None if isinstance(enforcer, str) else enforcer.name
                log.info("card_limited_by", card=uuid, by=by, why_not=known)
        self._by_card = found

    def why_not(self, card: CardUuid) -> str | None:
        """Return why no container can be limited on a card, or None."""
        found = self._enforcer(card)
        return found if isinstance(found, str) else None

    def promised(self, pod: PodInfo, slices: Iterable[Slice]) -> tuple[Limit, ...]:
        """Return the limits that a container is promised."""
        return promised_limits(pod, slices, lambda card: self.why_not(card) is None)

    def hold_back(self, container: Container, adjustment: Adjustment) -> Adjustment:
        """Return *adjustment* so that the container starts only after :meth:`prove`.

        Raises:
            EnforcementError: it cannot be kept back, or the runtime does not say its cgroup.
        """
        self._group(container)
        try:
            return self._gate.shut(container.id, adjustment)
        except GateError as error:
            raise EnforcementError(str(error)) from error

    def prove(self, container: Container, limits: Iterable[Limit]) -> None:
        """Set limits, read them back and let the container start.

        Raises:
            EnforcementError: a limit does not stand.
        """
        group = self._group(container)
        for limit in limits:
            enforcer, card = self._able(limit.card)
            enforcer.apply(group, card, limit)
            found = difference(limit, enforcer.read(group, card))
            if found is not None:
                raise EnforcementError(f"after the limit was set, {found}")
        try:
            self._gate.open(container.id)
        except GateError as error:
            raise EnforcementError(str(error)) from error

    def release(self, container: Container, limits: Iterable[Limit]) -> None:
        """Return what is kept for a container that has ended, while it has its cgroup.

        A failure is only logged: what is left is found among the cgroups above.
        """
        for limit in limits:
            try:
                enforcer, card = self._able(limit.card)
                enforcer.release(self._group(container), card)
            except EnforcementError as error:
                log.warning("limit_not_released", container=container.name, reason=str(error))

    def forget(self, container: str) -> None:
        """Remove what is on the host for a container that is gone."""
        self._gate.forget(container)

    def keep_only(self, containers: Iterable[str]) -> None:
        """Remove what is on the host for all but *containers*."""
        self._gate.keep_only(frozenset(containers))

    def _group(self, container: Container) -> str:
        try:
            return group_of(container.cgroups_path)
        except ValueError as error:
            raise EnforcementError(str(error)) from error

    def _able(self, card: CardUuid) -> tuple[Enforcer, CardHardware]:
        found, hardware = self._enforcer(card), self._cards().get(card)
        if isinstance(found, str):
            raise EnforcementError(f"{card} cannot be limited: {found}")
        if hardware is None:
            raise EnforcementError(f"{card} is not among the node's cards")
        return found, hardware

    def _enforcer(self, card: CardUuid) -> Enforcer | str:
        if not self._enforcers:
            return OFF
        if (problem := self._gate.problem) is not None:
            return problem
        if card not in self._by_card:
            hardware = self._cards().get(card)
            if hardware is None:
                return "it is not among the node's cards"
            self._by_card = {**self._by_card, card: self._find(hardware)}
        return self._by_card[card]

    def _find(self, card: CardHardware) -> Enforcer | str:
        reasons = []
        for enforcer in self._enforcers:
            reason = enforcer.why_not(card)
            if reason is None:
                return enforcer
            reasons.append(f"{enforcer.name}: {reason}")
        return "; ".join(reasons)
