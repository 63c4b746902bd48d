"""Whether a loop makes progress: for a liveness probe, where a restart would help."""

from process.clock import Clock


class Heartbeat:
    """Records when a loop last completed an iteration.

    Args:
        clock: for durations.
        name: of the loop, for people.
        limit_s: the longest time that one iteration may take, in seconds.
    """

    def __init__(self, clock: Clock, *, name: str, limit_s: float) -> None:
        self._clock = clock
        self._name = name
        self._limit_s = limit_s
        self._last_s = clock.monotonic()

    def beat(self) -> None:
        """Record an iteration of the loop."""
        self._last_s = self._clock.monotonic()

    def problem(self) -> str | None:
        """Return that the loop makes no progress, and for how long; None while it does."""
        still_s = self._clock.monotonic() - self._last_s
        if still_s <= self._limit_s:
            return None
        limit = f"want at most {self._limit_s:g}"
        return f"{self._name} has made no progress for {still_s:.0f} s; {limit}"
