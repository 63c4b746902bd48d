"""What has to hold on a card for a container's limit to be worth its name."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from deviceplugin.cards.interface import CardHardware
from deviceplugin.enforcement.interface import EnforcementError, Enforcer, Limit
from deviceplugin.enforcement.promises import difference
from fracgpu.units import Mib

# How much one of two that fight asks for at a time, and beyond which multiple of its limit one
# that is not limited stops: other programs may use the card as well.
_STEP_MIB: Final = Mib(128)
_FAR_BEYOND: Final = 2


class TenantError(Exception):
    """A process cannot use the card at all; the text says why."""


class Tenant(Protocol):
    """A process in a cgroup of its own, which uses one card."""

    def total_mib(self) -> Mib:
        """Return how much memory CUDA says that the card has."""
        ...

    def allocate(self, mib: Mib) -> bool:
        """Allocate memory and keep it; report whether there was enough."""
        ...


class Node(Protocol):
    """What the check does to the node."""

    def group(self, name: str) -> AbstractContextManager[str]:
        """Make a cgroup while the block runs; yields its path below the root of the cgroups."""
        ...

    def tenant(self, group: str, card: CardHardware) -> AbstractContextManager[Tenant]:
        """Run a tenant while the block runs.

        Raises:
            TenantError: CUDA does not let it use the card.
        """
        ...

    def set_and_die(self, group: str, card: CardHardware, limit: Limit) -> None:
        """Set a limit in another process, and kill that with SIGKILL.

        Raises:
            EnforcementError: it was not set.
        """
        ...


class Verdict(Enum):
    """Whether what was asked for holds."""

    HOLDS = "holds"
    FAILS = "FAILS"
    OPEN = "not known"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the report."""

    question: str
    verdict: Verdict
    answer: str


def check_card(card: CardHardware, enforcer: Enforcer, node: Node, *, mib: Mib) -> list[Finding]:
    """Ask all questions about a card that *enforcer* can limit.

    Args:
        card: the card.
        enforcer: the mechanism.
        node: does what has to be done.
        mib: the limit of each container.
    """
    asked = _Asked(card, enforcer, node, mib)
    found: list[Finding] = []
    for what, ask in {
        "one container": _one,
        "two containers that fight": _fight,
        "a process that set a limit and is killed": _killed,
        "a cgroup that is removed": _removed,
    }.items():
        try:
            found.extend(ask(asked))
        except (EnforcementError, TenantError) as error:
            found.append(Finding(question=what, verdict=Verdict.OPEN, answer=str(error)))
    return found


@dataclass(frozen=True, slots=True)
class _Asked:
    card: CardHardware
    enforcer: Enforcer
    node: Node
    mib: Mib

    @property
    def limit(self) -> Limit:
        return Limit(card=self.card.card.uuid, guaranteed_mib=self.mib, limit_mib=self.mib)

    def apply(self, group: str) -> None:
        self.enforcer.apply(group, self.card, self.limit)

    def difference(self, group: str) -> str | None:
        return difference(self.limit, self.enforcer.read(group, self.card))


def _finding(question: str, answer: str, *, holds: bool) -> Finding:
    verdict = Verdict.HOLDS if holds else Verdict.FAILS
    return Finding(question=question, verdict=verdict, answer=answer)


def _one(asked: _Asked) -> Iterator[Finding]:
    mib, half = asked.mib, Mib(asked.mib // 2)
    with asked.node.group("one") as group:
        asked.apply(group)
        other = asked.difference(group)
        yield _finding("a limit is read back", other or f"{mib} MiB", holds=other is None)
        with asked.node.tenant(group, asked.card) as tenant:
            total, within = tenant.total_mib(), tenant.allocate(half)
            used = asked.enforcer.read(group, asked.card).used_mib
            beyond = tenant.allocate(mib)
    yield _finding(
        "a hard limit holds without MPS",
        f"{half} MiB {_given(within)}, another {mib} MiB {_given(beyond)}",
        holds=within and not beyond,
    )
    answer = f"{total} MiB with a limit of {mib} MiB"
    yield _finding("a program is told its limit (cuMemGetInfo)", answer, holds=total <= mib)
    answer = f"{used} MiB after {half} MiB were allocated"
    yield _finding("what a container uses is counted", answer, holds=used >= half)


def _given(given: bool) -> str:  # noqa: FBT001 - the only argument there is
    return "were given" if given else "were refused"


def _fight(asked: _Asked) -> Iterator[Finding]:
    node, card = asked.node, asked.card
    with node.group("left") as left, node.group("right") as right:
        for group in (left, right):
            asked.apply(group)
        with node.tenant(left, card) as one, node.tenant(right, card) as other:
            held = _take_turns((one, other), most=_FAR_BEYOND * asked.mib)
    text = " and ".join(f"{mib} MiB" for mib in held)
    # What a program's context takes is the same for both, so they come equally far.
    fair = 0 < min(held) <= max(held) <= asked.mib and max(held) - min(held) <= _STEP_MIB
    answer = f"they got {text}, each with a limit of {asked.mib} MiB"
    yield _finding("two containers that fight get what is theirs", answer, holds=fair)


def _take_turns(tenants: Sequence[Tenant], *, most: int) -> Sequence[int]:
    """Let each allocate until it is refused, or has *most*; return what each has."""
    held = [0 for _ in tenants]
    hungry = set(range(len(tenants)))
    while hungry:
        for which in sorted(hungry):
            if held[which] < most and tenants[which].allocate(_STEP_MIB):
                held[which] += _STEP_MIB
            else:
                hungry.remove(which)
    return held


def _killed(asked: _Asked) -> Iterator[Finding]:
    with asked.node.group("killed") as group:
        asked.node.set_and_die(group, asked.card, asked.limit)
        answer = asked.difference(group) or ""
        if not answer:
            with asked.node.tenant(group, asked.card) as tenant:
                answer = "more than it was given" if tenant.allocate(Mib(asked.mib + 1)) else ""
    question = "a limit outlives the process that set it (kill -9)"
    yield _finding(question, answer or "it stands, and more is refused", holds=not answer)


def _removed(asked: _Asked) -> Iterator[Finding]:
    """Ask for what the agent's audit relies on; that something is left above is as documented."""
    with asked.node.group("above") as above:
        with asked.node.group("above/gone") as group:
            asked.apply(group)
        left = asked.enforcer.kept(above, asked.card)
        asked.enforcer.keep(above, asked.card, Mib(0))
        stays = asked.enforcer.kept(above, asked.card)
    answer = f"{left} MiB were left above it, {stays} MiB after the repair"
    yield _finding("what a removed cgroup leaves is taken away", answer, holds=not stays)


def lines(findings: list[Finding]) -> Iterator[str]:
    """Yield the report's lines."""
    for each in findings:
        yield f"  {each.verdict.value:<10} {each.question}: {each.answer}"
