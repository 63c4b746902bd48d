"""The dashboard of the running demo: cards with their slices and heat, and the last events."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicePanel:
    """One pod's slice of a card, in MiB."""

    pod: str
    mib: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CardPanel:
    """One card.

    Attributes:
        busy: the measured share of its time, 0..1; None where it is unknown.
        cordoned: it takes no new slices.
        avoided: it takes new slices only where no other card fits.
    """

    uuid: str
    index: int
    model: str
    capacity_mib: int
    slices: tuple[SlicePanel, ...]
    busy: float | None
    cordoned: bool
    avoided: bool = False

    @property
    def held_mib(self) -> int:
        return sum(part.mib for part in self.slices)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePanel:
    """One node and its cards by index."""

    name: str
    cards: tuple[CardPanel, ...]


@dataclass(frozen=True, slots=True)
class StoryLine:
    """A line that stays on the screen; *short* is what a small screen shows of it."""

    text: str
    short: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """Everything on the screen at one moment.

    Attributes:
        story: what stays on the screen: the refusals, and the pod that was moved.
    """

    nodes: tuple[NodePanel, ...]
    pods_running: int
    pods_expected: int
    roles: tuple[tuple[str, bool], ...]
    hot_line: float
    event_lines: tuple[str, ...]
    story: tuple[StoryLine, ...] = ()
