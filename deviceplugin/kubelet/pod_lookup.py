"""The pods of this node when a container starts: the holders of its slots from the API server."""

import asyncio
from collections.abc import Callable, Iterable, Mapping

import structlog

from deviceplugin.claims import PodKey
from fracgpu.errors import WireError
from fracgpu.state.pod_info import PodInfo, decode_pod_info
from kube.client import KubeClient
from kube.errors import KubeError, NotFound
from kube.kinds import PODS

log = structlog.get_logger()


NodePods = Callable[[], Mapping[PodKey, PodInfo] | None]
"""This node's pods as the informer has them; None until it has read them all once."""


class PodLookupError(Exception):
    """A pod is not known well enough; *outcome* is a metric label."""

    def __init__(self, outcome: str, text: str) -> None:
        super().__init__(text)
        self.outcome = outcome


class PodLookup:
    """Knows this node's pods from the informer, and reads those that matter from the API server.

    Args:
        reader: reads one pod from the API server.
        known: the informer's pods of this node.
        timeout_s: longest wait for the API server; kubelet gives up after 30 s.
    """

    def __init__(self, reader: KubeClient, known: NodePods, *, timeout_s: float) -> None:
        self._reader = reader
        self.known = known
        self._timeout_s = timeout_s

    async def pods(
        self, keys: Iterable[PodKey], *, token: str, owner_uid: str
    ) -> Mapping[PodKey, PodInfo]:
        """Return this node's pods, those of *keys* and those that carry *token* as they are now.

        Args:
            keys: the pods that may start; one that is gone is absent.
            token: as in a container's status; empty if there is none.
            owner_uid: the pod for which the informer's copy will do while the API server is away.

        Raises:
            PodLookupError: the informer or the API server has not answered.
        """
        known = self.known()
        if known is None:
            text = "this node's pods have not been listed yet"
            raise PodLookupError("pods_unknown", text)
        pods = dict(known)
        carriers = {key for key, pod in known.items() if token and _carries(pod, token)}
        for key in sorted({*keys, *carriers}):
            pod = await self._pod(key, known.get(key), owner_uid)
            if pod is None:
                pods.pop(key, None)
            else:
                pods[key] = pod
        return pods

    async def _pod(self, key: PodKey, known: PodInfo | None, owner_uid: str) -> PodInfo | None:
        """Return the pod from the API server; if that fails, *known* if it was verified before.

        The informer's copy is not enough for a new pod: one that is deleted and re-created under
        its name on this node may reach kubelet before it reaches us, and the old pod's cards are
        not the new one's.
        """
        namespace, name = key
        try:
            async with asyncio.timeout(self._timeout_s):
                return decode_pod_info(await self._reader.get(PODS, name, namespace=namespace))
        except NotFound:
            return None
        except (KubeError, TimeoutError, WireError) as error:
            if known is not None and known.record.uid == owner_uid:
                log.warning("pod_taken_from_memory", pod="/".join(key), reason=str(error))
                return known
            limit = f"no answer in {self._timeout_s:g} s"
            text = (
                f"cannot read pod {namespace}/{name}, and a container that was not verified "
                f"before must wait for the API server: {str(error) or limit}"
            )
            raise PodLookupError("api_silent", text) from error


def _carries(pod: PodInfo, token: str) -> bool:
    return any(token in text for text in pod.waiting.values())
