"""Answers the runtime about containers whose cards come with their claims: by their limits."""

from typing import Final

from deviceplugin.container.adjustment import MARK
from deviceplugin.container.cdi import MARK_PATH
from deviceplugin.enforcement.interface import EnforcementError
from deviceplugin.identity.starts import ContainerStarts
from deviceplugin.nri.interface import Adjustment, Container, PodSandbox

_NOTHING: Final = Adjustment()


class ClaimedStarts(ContainerStarts):
    """Limits containers; the spec of one that was promised limits does not start without that."""

    def _answer(self, pod: PodSandbox, container: Container) -> Adjustment:
        if not any(mount.destination == MARK_PATH for mount in container.mounts):
            return _NOTHING
        known = (self._pods() or {}).get(pod.uid)
        slices = (known.record.limits or {}).get(container.name, ()) if known else ()
        if known is None or not slices:
            text = f"the agent does not know the cards of {pod.namespace}/{pod.name} yet"
            raise self._refused(pod, container, "pod_unknown", text)
        if not self._limiter.promised(known, slices):
            text = "it was promised limits, and its cards can have none now"
            raise self._refused(pod, container, "limit_not_proved", text)
        try:
            adjustment = self._limiter.hold_back(container, Adjustment(mounts=(MARK,)))
        except EnforcementError as error:
            raise self._refused(pod, container, "limit_not_proved", str(error)) from error
        self.expect()  # its start, which needs the agent too
        return adjustment
