"""What a refusal says, in one line of a screen."""

from typing import Final

from simulator.demo.dashboard import StoryLine

_DENIED: Final = "denied the request: "
_LONGEST: Final = 100


def refusal_line(name: str, message: str | None) -> StoryLine:
    """Return what was refused and why; of a long reason its first and its last clause.

    The first names what was there, and the last one what would work: a small screen has that alone.
    """
    if message is None:
        text = f"{name} was NOT refused"
        return StoryLine(text, text)
    reason = message.rpartition(_DENIED)[2].strip()
    last = reason
    clauses = reason.split("; ")
    if len(reason) > _LONGEST and len(clauses) > 2:  # noqa: PLR2004 - nothing between two
        last = clauses[-1]
        reason = f"{clauses[0]}; ... {last}"
    return StoryLine(f"refused {name}: {reason}", f"refused {name}: {last}")
