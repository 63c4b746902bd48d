"""The decisions of this second: the pods of one workload are alike, and come in bursts."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec

from fracgpu import names
from fracgpu.cards.card_class import CardClass
from fracgpu.request.grant_note import Seal
from webhook.admission.mutation import admit_create
from webhook.admission.pod import NO_META, Pod
from webhook.admission.verdict import AdmissionResult
from webhook.admission_config import AdmissionConfig

# Together they take at most a few MiB, whatever the pods have in them.
_MOST_QUESTIONS: Final = 64
_MOST_QUESTION_BYTES: Final = 16 * 1024

_encoder: Final = msgspec.json.Encoder()

# The seal's key and namespace, whether there is metadata at all, and the rest of the pod.
_Question = tuple[bytes, str, bool, bytes]


class RecentDecisions:
    """Decides on new pods by :func:`admit_create`, once for those that are alike in one second.

    Pods are alike if all that admission decodes of them is equal, but for their names. A decision
    depends on its arguments alone, and on the time in whole seconds, in which a grant says when it
    was made. So nothing is remembered beyond a second, nor once card classes or configuration have
    changed.
    """

    def __init__(self) -> None:
        self._basis: tuple[object, object, datetime | None] = (None, None, None)
        self._known: dict[_Question, tuple[Mapping[str, str], AdmissionResult]] = {}

    def admit_create(
        self,
        pod: Pod,
        classes: Sequence[CardClass] | None,
        *,
        config: AdmissionConfig,
        namespace_labels: Mapping[str, str],
        seal: Seal,
    ) -> AdmissionResult:
        """Return what :func:`admit_create` returns, or has returned for a pod like this one."""
        question = self._question(pod, seal)
        if question is None:
            return admit_create(
                pod, classes, config=config, namespace_labels=namespace_labels, seal=seal
            )
        self._forget_outdated(classes, config, seal.now.replace(microsecond=0))
        known = self._known.get(question)
        if known is not None and known[0] == namespace_labels:
            return known[1]
        result = admit_create(
            pod, classes, config=config, namespace_labels=namespace_labels, seal=seal
        )
        self._remember(question, namespace_labels, result)
        return result

    @staticmethod
    def _question(pod: Pod, seal: Seal) -> _Question | None:
        """Return what makes pods alike; None for a pod that is always decided by itself.

        Whether a grant that a pod has already is still valid depends on more than the second.
        """
        meta = pod.metadata
        if meta.annotations is not None and names.GRANTED in meta.annotations:
            return None
        body = _encoder.encode((meta.annotations, meta.labels, pod.spec))
        if len(body) > _MOST_QUESTION_BYTES:
            return None
        return seal.key, seal.scope, meta is NO_META, body

    def _forget_outdated(
        self, classes: Sequence[CardClass] | None, config: AdmissionConfig, second: datetime
    ) -> None:
        known_classes, known_config, known_second = self._basis
        if known_classes is classes and known_config is config and known_second == second:
            return
        self._basis = (classes, config, second)
        self._known.clear()

    def _remember(
        self,
        question: _Question,
        namespace_labels: Mapping[str, str],
        result: AdmissionResult,
    ) -> None:
        if len(self._known) >= _MOST_QUESTIONS:
            del self._known[next(iter(self._known))]
        self._known[question] = (namespace_labels, result)
