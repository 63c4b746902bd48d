"""What a refusal says, in one line of a screen."""

from typing import Final

_DENIED: Final = "denied the request: "
_LONGEST: Final = 100
OMITTED: Final = "; ... "


def refusal_line(name: str, message: str | None) -> str:
    """Return what was refused and why; of a long reason its first and its last clause.

    The first names what was there, and the last one what would work.
    """
    if message is None:
        return f"{name} was NOT refused"
    reason = message.rpartition(_DENIED)[2].strip()
    clauses = reason.split("; ")
    if len(reason) > _LONGEST and len(clauses) > 2:  # noqa: PLR2004 - nothing between two
        reason = f"{clauses[0]}{OMITTED}{clauses[-1]}"
    return f"refused {name}: {reason}"
