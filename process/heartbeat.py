"""Whether a loop still goes round: what a liveness probe may ask, where a restart would heal it."""

from process.clock import Clock


class Heartbeat:
    """Knows when a loop last went round.

    Args:
        clock: for durations.
        name: of the loop, for people.
        limit_s: how long one round may take at most.
    """

    def __init__(self, clock: Clock, *, name: str, limit_s: float) -> None:
        self._clock = clock
        self._name = name
        self._limit_s = limit_s
        self._last_s = clock.monotonic()

    def beat(self) -> None:
        """Say that the loop goes round."""
        self._last_s = self._clock.monotonic()

    def problem(self) -> str | None:
        """Say that the loop stands still, and for how long; None while it does not."""
        still_s = self._clock.monotonic() - self._last_s
        if still_s <= self._limit_s:
            return None
        return f"{self._name} has stood still for {still_s:.0f} s; want {self._limit_s:g} at most"
