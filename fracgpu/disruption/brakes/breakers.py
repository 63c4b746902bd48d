"""Circuit breakers: after what went wrong, the rebalancer only shows for a while what it would do.

Each closes by itself when what opened it is long enough ago, or when an administrator sets
``reset_breakers_at`` to a later time. All but the last two are counted from past moves alone, so
they stay open across restarts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum
from typing import Final

from fracgpu.disruption.move import CARRIED_OUT, PastMove
from fracgpu.disruption.policy import Mode, RebalancerPolicy
from fracgpu.errors import counted

_LAST_MOVES: Final = 6  # of which too many may have relieved nothing
_MOST_ERRORS: Final = 10_000


class Breaker(Enum):
    """What may open; the value is a metric label."""

    ABORTS = "aborts"
    LOST_POD = "lost_pod"
    INEFFECTIVE = "ineffective"
    BLIND = "blind"
    API_ERRORS = "api_errors"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenBreaker:
    """A breaker that is open, and why.

    Attributes:
        until: when it closes by itself if nothing more happens; None if that is not known yet.
    """

    breaker: Breaker
    why: str
    until: datetime | None

    def __str__(self) -> str:
        until = f"until {self.until:%Y-%m-%d %H:%M:%S %Z}" if self.until else "until it sees again"
        return f"{self.breaker.value}: {self.why}; {until}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outages:
    """What this process lived through; unlike moves it is forgotten with the process.

    A new process moves nothing during its startup grace anyway.

    Attributes:
        blind_since: since when it has been blind without a gap; None if it sees.
        seeing_since: when it last saw again after it had been blind for too long.
        api_errors: when the API server cut a cycle short, oldest first.
    """

    blind_since: datetime | None = None
    seeing_since: datetime | None = None
    api_errors: tuple[datetime, ...] = ()

    def after_cycle(self, *, blind: bool, policy: RebalancerPolicy, now: datetime) -> "Outages":
        """Return the outages after a cycle that was *blind* or was not."""
        if blind:
            return replace(self, blind_since=self.blind_since or now)
        if self.blind_since is None:
            return self
        long = now - self.blind_since > timedelta(seconds=policy.breaker_blind_s)
        return replace(self, blind_since=None, seeing_since=now if long else self.seeing_since)

    def after_api_error(self, *, policy: RebalancerPolicy, now: datetime) -> "Outages":
        """Return the outages after a cycle that the API server cut short."""
        window = timedelta(seconds=policy.breaker_window_s)
        kept = [at for at in self.api_errors if now - at < window]
        return replace(self, api_errors=(*kept, now)[-_MOST_ERRORS:])


NO_OUTAGES: Final = Outages()


def open_breakers(
    past: Sequence[PastMove],
    *,
    policy: RebalancerPolicy,
    now: datetime,
    outages: Outages = NO_OUTAGES,
) -> tuple[OpenBreaker, ...]:
    """Return every breaker that is open at *now*; the same input always gives the same answer."""
    since = policy.reset_breakers_at
    forgotten = since if since is not None and since <= now else None
    real = [
        past_move
        for past_move in past
        if not past_move.only_shown
        and past_move.ended_at is not None
        and (forgotten is None or past_move.ended_at > forgotten)
    ]
    return (
        *_from_moves(real, policy=policy, now=now),
        *_from_outages(outages, forgotten, policy=policy, now=now),
    )


def effective_mode(policy: RebalancerPolicy, breakers: Sequence[OpenBreaker]) -> Mode:
    """Return the mode in which new moves are planned: while a breaker is open, none is active."""
    return Mode.DRY_RUN if breakers and policy.mode is Mode.ACTIVE else policy.mode


def _from_moves(
    ended: Sequence[PastMove], *, policy: RebalancerPolicy, now: datetime
) -> Iterator[OpenBreaker]:
    window = timedelta(seconds=policy.breaker_window_s)
    aborted = _ends([past_move for past_move in ended if past_move.failed], window, now)
    if len(aborted) >= policy.breaker_aborts:
        were = "was" if len(aborted) == 1 else "were"
        why = f"{counted(len(aborted), 'move')} {were} aborted after a pod was disturbed"
        yield OpenBreaker(
            breaker=Breaker.ABORTS, why=why, until=aborted[-policy.breaker_aborts] + window
        )
    memory = timedelta(seconds=policy.breaker_lost_s)
    lost = _ends([past_move for past_move in ended if past_move.lost], memory, now)
    if lost:
        why = f"{len(lost)} pods were lost" if len(lost) > 1 else "a pod was lost"
        yield OpenBreaker(breaker=Breaker.LOST_POD, why=why, until=lost[-1] + memory)
    yield from _ineffective(ended, policy=policy, now=now)


def _ineffective(
    ended: Sequence[PastMove], *, policy: RebalancerPolicy, now: datetime
) -> Iterator[OpenBreaker]:
    memory = timedelta(seconds=policy.breaker_useless_s)
    carried_out = sorted(
        (past_move for past_move in ended if past_move.ending in CARRIED_OUT),
        key=lambda past_move: past_move.ended_at or past_move.started_at,
    )
    useless = _ends(
        [past_move for past_move in carried_out[-_LAST_MOVES:] if past_move.useless], memory, now
    )
    allowed = int(policy.breaker_useless_ratio * _LAST_MOVES)
    if len(useless) > allowed:
        why = f"{len(useless)} of the last {_LAST_MOVES} moves relieved nothing"
        yield OpenBreaker(
            breaker=Breaker.INEFFECTIVE, why=why, until=useless[-allowed - 1] + memory
        )


def _from_outages(
    outages: Outages, forgotten: datetime | None, *, policy: RebalancerPolicy, now: datetime
) -> Iterator[OpenBreaker]:
    rest = timedelta(seconds=policy.breaker_blind_s)
    if outages.blind_since is not None and now - outages.blind_since > rest:
        why = f"blind since {outages.blind_since:%H:%M:%S %Z}"
        yield OpenBreaker(breaker=Breaker.BLIND, why=why, until=None)
    elif (
        outages.seeing_since is not None
        and now - outages.seeing_since < rest
        and (forgotten is None or outages.seeing_since > forgotten)
    ):
        why = f"it was blind for more than {policy.breaker_blind_s:g} s"
        yield OpenBreaker(breaker=Breaker.BLIND, why=why, until=outages.seeing_since + rest)
    window = timedelta(seconds=policy.breaker_window_s)
    errors = [
        at
        for at in outages.api_errors
        if now - at < window and (forgotten is None or at > forgotten)
    ]
    if len(errors) >= policy.breaker_api_errors:
        yield OpenBreaker(
            breaker=Breaker.API_ERRORS,
            why=f"the API server cut {counted(len(errors), 'cycle')} short",
            until=errors[-policy.breaker_api_errors] + window,
        )


def _ends(moves: Sequence[PastMove], memory: timedelta, now: datetime) -> list[datetime]:
    """Return when the moves that are still remembered ended, oldest first."""
    ends = sorted(past_move.ended_at for past_move in moves if past_move.ended_at is not None)
    return [at for at in ends if now - at < memory]
