"""Answers the runtime about containers whose cards come with their claims: by their limits."""

from typing import Final

from deviceplugin.claims import Claim
from deviceplugin.container.cdi import ABSENT, MARK_PATH
from deviceplugin.identity.starts import ContainerStarts
from deviceplugin.nri.interface import Adjustment, Container, PodSandbox
from fracgpu import names
from fracgpu.cards.card import Health

_NOTHING: Final = Adjustment()


class ClaimedStarts(ContainerStarts):
    """Limits containers, and refuses those of a second pod that names the same claim.

    Kubelet does not ask to prepare a claim once more, and gives the second pod the first's card.
    """

    def _answer(self, pod: PodSandbox, container: Container) -> Adjustment:
        known = (self._pods() or {}).get(pod.uid)
        slices = (known.record.limits or {}).get(container.name, ()) if known else ()
        has_cards = any(line.startswith(f"{names.ENV_CARDS}=") for line in container.env)
        inventory = self._tracker.inventory
        listed = bool(inventory.cards)  # else nobody's cards are known
        if known is not None and known.has_device_claims and has_cards and listed and not slices:
            text = f"container {container.name} of {known.record.key} has the card of another pod"
            raise self._refused(pod, container, "claim_refused", f"{text}, whose claim it names")
        if (MARK_PATH, ABSENT) not in ((m.destination, m.source) for m in container.mounts):
            return _NOTHING
        if known is None or not slices:
            text = f"the agent does not know the cards of {pod.namespace}/{pod.name} yet"
            raise self._refused(pod, container, "pod_unknown", text)
        if not self._limiter.promised(known, slices):
            text = "it was promised limits, and its cards can have none now"
            raise self._refused(pod, container, "limit_not_proved", text)
        cards = inventory.by_uuid()
        try:
            mine = tuple(cards[part.card] for part in slices)
        except KeyError as error:
            text = f"its card {error.args[0]} is not here any more"
            raise self._refused(pod, container, "card_not_here", text) from error
        for card in mine:
            if card.health is not Health.HEALTHY:
                text = f"its card {card.uuid} is unhealthy: {card.health_reason}"
                raise self._refused(pod, container, "card_unhealthy", text)
        claim = Claim(pod=known, container=container.name, slices=slices, cards=mine)
        return self._outfitted(pod, container, claim, inventory)[0]
