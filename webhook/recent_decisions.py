"""The latest decisions: most pods differ from others only in what admission does not read."""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

import msgspec

from fracgpu import names
from fracgpu.request.grant_note import Seal
from webhook.admission.context import DecisionContext
from webhook.admission.mutation import decide_create
from webhook.admission.pod import NO_META, Pod
from webhook.admission.verdict import AdmissionResult, Denied, Granted, Patched, Verdict

# Of all that is remembered: some two thousand decisions on pods of the usual size.
_MOST_BYTES: Final = 4 * 1024 * 1024
_MOST_QUESTION_BYTES: Final = 8 * 1024
_OBJECTS_BYTES: Final = 1024  # about what Python's objects take beside the texts of a decision

_encoder: Final = msgspec.json.Encoder()


class _Known(msgspec.Struct, gc=False):
    """A decision, and the one that it gave when it was last sealed."""

    verdict: Verdict
    sealed: Patched | None = None
    by: tuple[bytes, str, datetime] | None = None

    def result(self, seal: Seal) -> AdmissionResult:
        """Return the decision, sealed if it has a grant; a seal has its time in whole seconds."""
        if not isinstance(self.verdict, Granted):
            return self.verdict
        by = (seal.key, seal.scope, seal.now.replace(microsecond=0))
        if self.sealed is None or self.by != by:
            self.sealed, self.by = self.verdict.sealed(seal), by
        return self.sealed


class RecentDecisions:
    """Decides on new pods by :func:`decide_create`, once for those that are alike.

    Pods are alike if all that the rules read of them and of their namespaces is equal. A decision
    before its seal depends on its arguments alone, so it holds until the card classes or the
    configuration change.
    """

    def __init__(self) -> None:
        self._basis: tuple[object, object] = (None, None)
        self._known: dict[bytes, _Known] = {}
        self._bytes = 0

    def decide(self, pod: Pod, context: DecisionContext) -> Verdict:
        """Return what :func:`decide_create` returns, or has returned for a pod like this one."""
        question = _question(pod, context.namespace_labels)
        classes, config = context.classes, context.config
        if self._basis[0] is not classes or self._basis[1] is not config:
            self._basis = (classes, config)
            self._known.clear()
            self._bytes = 0
        known = None if question is None else self._known.get(question)
        if known is None:
            known = _Known(decide_create(pod, context))
            if question is not None:
                self._remember(question, known)
        return known.result(context.seal)

    def _remember(self, question: bytes, known: _Known) -> None:
        self._bytes += _bytes_of(question, known.verdict)
        while self._known and self._bytes > _MOST_BYTES:
            oldest = next(iter(self._known))
            self._bytes -= _bytes_of(oldest, self._known.pop(oldest).verdict)
        self._known[question] = known


def _question(pod: Pod, namespace_labels: Mapping[str, str]) -> bytes | None:
    """Return what makes pods alike; None for a pod that is always decided by itself.

    Whether a grant that a pod has already is still valid depends on the time, and what a pod's
    selectors allow depends on the labels of all nodes.
    """
    meta = pod.metadata
    if meta.annotations is not None and names.GRANTED in meta.annotations:
        return None
    if pod.spec.node_selector or pod.spec.required_nodes is not None:
        return None
    question = _encoder.encode(
        (meta is NO_META, meta.annotations, meta.labels, pod.spec, namespace_labels)
    )
    return question if len(question) <= _MOST_QUESTION_BYTES else None


def _bytes_of(question: bytes, verdict: Verdict) -> int:
    """Return about how much memory a decision takes, once it has been sealed."""
    texts = list(verdict.warnings) if not isinstance(verdict, Denied) else [verdict.message]
    size = _OBJECTS_BYTES + len(question) + sum(map(len, texts))
    if not isinstance(verdict, Granted):
        return size
    patch, note = verdict.patch, verdict.note
    return size + 2 * (len(patch.before) + len(patch.behind)) + 3 * len(note.words + note.data)
