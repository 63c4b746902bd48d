"""Sets a container's limits before its first process runs, and proves that they stand."""

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import structlog

from deviceplugin.cards.interface import CardHardware, GroupLimits
from deviceplugin.enforcement.cgroups import group_of, write_line
from deviceplugin.enforcement.gate import PROOF_PATH, Gate, GateError
from deviceplugin.enforcement.interface import (
    EnforcementError,
    Enforcer,
    Limit,
    LimitMissingError,
    ResizePendingError,
)
from deviceplugin.enforcement.promises import (
    difference,
    limits_of,
    lowest_first,
    promised_limits,
    wanted_above,
)
from deviceplugin.nri.interface import Adjustment, Container
from fracgpu import names
from fracgpu.cards.card import CardUuid
from fracgpu.request.language import wants_kernel
from fracgpu.request.need import Isolation
from fracgpu.state.allocation import Slice
from fracgpu.state.pod_info import PodInfo
from fracgpu.state.resize import isolation_of
from fracgpu.units import Mib

log = structlog.get_logger()

OFF = "--limits is none"
# Which cgroups kubelet has its pods in, with either driver of cgroups.
_KUBELETS: Final = ("kubepods", "kubepods.slice")


class Limiter:
    """Limits by what can limit a card: the first of *enforcers* that is able to. In any thread.

    Args:
        enforcers: in the order in which they are preferred; none limits nothing.
        cards: the node's cards.
        gate: keeps containers back.
        root: where the node's cgroups are.
    """

    def __init__(
        self,
        enforcers: Sequence[Enforcer],
        *,
        cards: Callable[[], Mapping[CardUuid, CardHardware]],
        gate: Gate,
        root: Path,
    ) -> None:
        self._enforcers = enforcers
        self._cards = cards
        self._gate = gate
        self._root = root
        self._lock = threading.Lock()
        self._changes = 0  # of what is kept for containers, each made under the lock
        self._unsettled: frozenset[str] = frozenset()  # containers that begin, or have ended
        self._by_card: dict[CardUuid, Enforcer | str] = {}

    def refresh(self) -> None:
        """Probe anew what can limit the cards that nothing could limit until now.

        One that could be limited stays so: where that fails from now on, starts are refused.
        """
        for uuid, card in self._cards().items() if self._enforcers else ():
            if isinstance(self._by_card.get(uuid, ""), str):
                self._probe(card)

    def why_not(self, card: CardUuid) -> str | None:
        """Return why no container can be limited on a card, or None."""
        found = self._enforcer(card)
        return found if isinstance(found, str) else None

    def keeps_guarantees(self, card: CardUuid) -> bool:
        """Report whether containers get what they are guaranteed although others borrow it."""
        found = self._enforcer(card)
        return not isinstance(found, str) and found.keeps_guarantees

    def promised(self, pod: PodInfo, slices: Iterable[Slice]) -> tuple[Limit, ...]:
        """Return the limits that a container is promised."""
        return promised_limits(pod, slices, lambda card: self.why_not(card) is None)

    @property
    def unlimited(self) -> str | None:
        """Why not every card is limited, as last probed; empty if each is, None while not known."""
        cards = self._cards()
        if self._enforcers and (not cards or cards.keys() - self._by_card.keys()):
            return None
        reasons = [f"{card}: {why}" for card in cards if (why := self.why_not(card)) is not None]
        return OFF if not self._enforcers else next(iter(reasons), "")

    def check_wanted(self, pod: PodInfo, slices: Iterable[Slice]) -> None:
        """Raise for a pod that runs only with limits, on a card that has none.

        Raises:
            EnforcementError: why it has none.
        """
        if wants_kernel(pod.annotations):
            for part in slices:
                if (why := self.why_not(part.card)) is not None:
                    text = f"the pod wants {names.ISOLATION}: kernel, and {part.card} cannot be"
                    raise EnforcementError(f"{text} limited: {why}")

    def promise(self, pod: PodInfo, slices: Sequence[Slice]) -> tuple[tuple[Limit, ...], Isolation]:
        """Return the limits that a container is promised, and what limits it on all its cards.

        Raises:
            EnforcementError: its pod runs only with limits, and a card can have none.
        """
        self.check_wanted(pod, slices)
        promised = self.promised(pod, slices)
        return promised, Isolation.KERNEL if len(promised) == len(slices) else Isolation.NONE

    def why_not_all(self, slices: Iterable[Slice]) -> str | None:
        """Return why no container can be limited on one of its cards, or None."""
        return next(filter(None, (self.why_not(part.card) for part in slices)), None)

    def limits_of(self, container: Container, pod: PodInfo | None) -> tuple[Limit, ...]:
        """Return the limits that a container was promised when it was created, by its gate.

        On every card where its pod insists on it or notes it, also if one cannot be limited now.

        Raises:
            EnforcementError: it was promised some, and they are not known any more.
        """
        if not _is_held_back(container):
            return ()
        slices = (pod.record.limits or {}).get(container.name) if pod is not None else None
        if pod is None or not slices:
            raise EnforcementError("it was promised limits, and the agent does not know its cards")
        isolation = (isolation_of(pod.annotations) or {}).get(container.name)
        if wants_kernel(pod.annotations) or isolation == Isolation.KERNEL.value:
            return limits_of(slices)
        return self.promised(pod, slices) or limits_of(slices)

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
        self._unsettled |= {container.id}
        for limit in limits:
            with self._changing():
                self._set(group, limit)
        try:
            self._gate.open(container.id)
        except GateError as error:
            raise EnforcementError(str(error)) from error
        self._unsettled -= {container.id}

    def release(self, container: Container) -> None:
        """Return what is kept for a container that has ended, while it has its cgroup.

        Asked of every card, as its pod may be gone and with it what it was assigned. A failure is
        only logged, and the first is enough: what is left is found among the cgroups above.
        """
        if not _is_held_back(container):
            return
        self._unsettled |= {container.id}
        try:
            for uuid in self._cards():
                if self.why_not(uuid) is None:
                    enforcer, card = self._able(uuid)
                    with self._changing():
                        enforcer.release(self._group(container), card)
        except EnforcementError as error:
            log.warning("limit_not_released", container=container.name, reason=str(error))

    def verify(self, container: Container, limit: Limit, before: Limit | None = None) -> str | None:
        """Read a limit back, and set it again if it does not stand.

        Args:
            container: has the limit.
            limit: what is to stand.
            before: what may still stand, as the container is being resized.

        Returns:
            in which way it did not stand, if it was set again; None if it stood, or if the
            container has no cgroup any more.

        Raises:
            LimitMissingError: it does not stand, and cannot be set again.
            ResizePendingError: it cannot be set, and the one before stands.
            EnforcementError: it is not known whether it stands.
        """
        group = self._group(container)
        try:
            enforcer, card = self._able(limit.card)
            stands = enforcer.read(group, card)
            found = difference(limit, stands)
            if found is not None and container.id in self._unsettled:
                return None
            if found is not None and before is not None and _is_between(limit, before, stands):
                self._resize(group, limit, stands)
                return None
            if found is not None:
                self._set_again(group, limit, found)
        except EnforcementError:
            if self._exists(group):
                raise
            return None
        return found

    def stand(self, container: Container, limits: Iterable[Limit]) -> bool:
        """Report whether a running container has these limits, and no others are being set."""
        try:
            group = self._group(container)
            for limit in limits:
                enforcer, card = self._able(limit.card)
                if difference(limit, enforcer.read(group, card)) is not None:
                    return False
        except EnforcementError:
            return False
        return container.id not in self._unsettled

    @property
    def changes(self) -> int:
        """How often what is kept for a container was changed; to be read before the containers."""
        with self._lock:
            return self._changes

    def repair_above(self, card: CardUuid, containers: Iterable[Container], *, changes: int) -> int:
        """Repair what the cgroups above containers keep: as much as those together.

        Returns:
            how many kept another amount.

        Args:
            card: of which memory is kept.
            containers: all that run on the node.
            changes: how many there were before they were looked up; nothing is repaired where there
                were more since.

        Raises:
            EnforcementError: it cannot be read or set.
        """
        enforcer, hardware = self._able(card)
        groups = {self._group(container) for container in containers if container.cgroups_path}
        kept = {}
        for group in groups:
            mib = self._if_there(group, enforcer.kept, hardware)
            if mib is not None:
                kept[group] = mib
        repaired = 0
        for group in lowest_first(self._groups_beside(groups)):
            found, wanted = (
                self._if_there(group, enforcer.kept, hardware),
                wanted_above(group, kept),
            )
            if found is None or found == wanted:
                continue
            with self._lock:
                if self._changes != changes:
                    return repaired  # a container began or ended meanwhile: the next time
                enforcer.keep(group, hardware, wanted)
            repaired += 1
            log.info("kept_memory_repaired", card=card, cgroup=group, was=found, mib=wanted)
        return repaired

    def counted(
        self, containers: Mapping[str, tuple[str, Container]], pods: Mapping[str, PodInfo]
    ) -> Mapping[tuple[str, str, CardUuid], GroupLimits]:
        """Return what stands for running containers that were promised limits, and what they use.

        A container without cgroup any more, or of which nothing can be read, is left out.
        """
        found = {}
        for uid, container in containers.values():
            with suppress(EnforcementError):
                for limit in self.limits_of(container, pods.get(uid)):
                    enforcer, card = self._able(limit.card)
                    stands = enforcer.read(self._group(container), card)
                    found[uid, container.name, limit.card] = stands
        return found

    def forget(self, container: str) -> None:
        """Remove what is on the host for a container that is gone."""
        self._gate.forget(container)
        self._unsettled -= {container}

    def keep_only(self, containers: Iterable[str]) -> None:
        """Remove what is on the host for all but *containers*."""
        self._gate.keep_only(frozenset(containers))

    def stop(self, container: Container) -> None:
        """End all processes of a container.

        Raises:
            EnforcementError: the kernel does not.
        """
        file = self._root / self._group(container).lstrip("/") / "cgroup.kill"
        try:
            write_line(file, "1")
        except OSError as error:
            raise EnforcementError(f"{file} cannot be written: {error.strerror}") from error

    def _set_again(self, group: str, limit: Limit, found: str) -> None:
        try:
            self._set(group, limit)
        except EnforcementError as error:
            raise LimitMissingError(f"{found}: {error}") from error

    def _resize(self, group: str, limit: Limit, stood: GroupLimits) -> None:
        try:
            self._set(group, limit)
        except EnforcementError as error:
            enforcer, card = self._able(limit.card)
            now = enforcer.read(group, card)
            if now.limit_mib != stood.limit_mib:
                found = difference(limit, now)
                raise LimitMissingError(f"{found}: {error}") from error
            raise ResizePendingError(str(error)) from error

    def _set(self, group: str, limit: Limit) -> None:
        enforcer, card = self._able(limit.card)
        enforcer.apply(group, card, limit)
        found = difference(limit, enforcer.read(group, card))
        if found is not None:
            raise EnforcementError(f"after the limit was set, {found}")

    @contextmanager
    def _changing(self) -> Iterator[None]:
        with self._lock:
            self._changes += 1
            yield

    def _groups_beside(self, containers: Set[str]) -> Iterator[str]:
        """Yield the cgroups that are neither containers' nor in one, in the trees with containers.

        The trees of kubelet's also where no container runs: what the last one left is there.
        """
        for top in {*_KUBELETS, *(group.split("/")[1] for group in containers)}:
            for folder, inside, _ in os.walk(self._root / top):
                group = f"/{Path(folder).relative_to(self._root)}"
                if group in containers:
                    inside.clear()
                else:
                    yield group

    def _if_there(
        self, group: str, read: Callable[[str, CardHardware], Mib | None], card: CardHardware
    ) -> Mib | None:
        try:
            return read(group, card)
        except EnforcementError:
            if self._exists(group):
                raise
            return None

    def _exists(self, group: str) -> bool:
        return (self._root / group.lstrip("/")).is_dir()

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
            return self._probe(hardware)
        return self._by_card[card]

    def _probe(self, card: CardHardware) -> Enforcer | str:
        uuid, found = card.card.uuid, self._find(card)
        if found != self._by_card.get(uuid):
            by, why = (None, found) if isinstance(found, str) else (found.name, None)
            log.info("card_limited_by", card=uuid, by=by, why_not=why)
        self._by_card = {**self._by_card, uuid: found}
        return found

    def _find(self, card: CardHardware) -> Enforcer | str:
        reasons = []
        for enforcer in self._enforcers:
            reason = enforcer.why_not(card)
            if reason is None:
                return enforcer
            reasons.append(f"{enforcer.name}: {reason}")
        return "; ".join(reasons)


def _is_between(limit: Limit, before: Limit, stands: GroupLimits) -> bool:
    """Report whether a limit is one of a resize that goes on: no larger than what is counted.

    A smaller one than both may stand where another size was asked for before this one.
    """
    highest_mib = max(limit.limit_mib, before.limit_mib)
    return stands.limit_mib is not None and stands.limit_mib <= highest_mib


def _is_held_back(container: Container) -> bool:
    """Report whether a container was promised limits when it was created."""
    return any(mount.destination == PROOF_PATH for mount in container.mounts)
