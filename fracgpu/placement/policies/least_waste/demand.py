"""What a pod requests, in the units that decide what is left for others."""

from dataclasses import dataclass

from fracgpu.placement.node_matrix import WHOLE_CARD_MILLI


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What one pod requests of a node.

    Attributes:
        cpu_milli: CPU request in thousandths of a core.
        cards: number of distinct cards; 0 for a pod that needs none.
        share_milli: thousandths of each of these cards; 0 where *cards* is 0.
        models: card models accepted; None accepts every model.
    """

    cpu_milli: int = 0
    cards: int = 0
    share_milli: int = 0
    models: frozenset[str] | None = None

    def __post_init__(self) -> None:
        if self.cpu_milli < 0 or self.cards < 0:
            raise ValueError(f"{self} has a negative amount; want 0 or more")
        least = 1 if self.cards else 0
        most = WHOLE_CARD_MILLI if self.cards else 0
        if not least <= self.share_milli <= most:
            raise ValueError(
                f"share_milli is {self.share_milli} with {self.cards} cards; want {least} to {most}"
            )

    @property
    def gpu_milli(self) -> int:
        """Thousandths of a card over all its cards."""
        return self.cards * self.share_milli

    def accepts(self, model: str) -> bool:
        """Report whether it may run on nodes with cards of a model."""
        return not self.cards or self.models is None or model in self.models
