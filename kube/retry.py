"""The retry policy of reads."""

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often and how fast a read is retried: with a doubling, capped, jittered pause."""

    attempts: int = 4
    first_pause_s: float = 0.2
    longest_pause_s: float = 3.0

    def pause_s(self, failures: int) -> float:
        """Return the pause after that many failures in a row (1 for the first)."""
        ceiling = min(self.longest_pause_s, self.first_pause_s * 2.0 ** min(failures - 1, 30))
        # Half is fixed, so that a pause is never zero; the other half spreads clients out.
        return ceiling * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not secrecy
