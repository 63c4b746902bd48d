"""Whether what pods and workloads request was read: by our webhook, and by queues like Kueue."""

from collections.abc import Iterator, Sequence
from typing import Final

from fracgpu import names
from fracgpu.doctor.cures import create_anew
from fracgpu.doctor.facts import (
    Facts,
    annotations_of,
    known,
    limits_memory,
    name_of,
    requests_memory,
    template_of,
)
from fracgpu.doctor.finding import Check, Finding, error, warning
from fracgpu.doctor.ranking import INSTALLED, WEBHOOK_REGISTERED
from fracgpu.errors import counted
from fracgpu.state.pod_info import PodInfo

QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
"""The label by which Kueue admits a workload: https://kueue.sigs.k8s.io/docs/tasks/run/jobs/"""

_ASKING: Final = (names.FRACTION, names.MEMORY, names.CARDS)


def _granted(facts: Facts) -> Iterator[Finding]:
    unread = [each for each in known(facts.requesting) if _was_not_read(each)]
    never = (facts.system_namespace, "kube-system")
    if apart := [each for each in unread if each.record.namespace in never]:
        yield error(
            f"{_such_as(apart)} in a namespace whose pods the webhook never reads: it gets no card",
            cure=f"create it in another namespace than {' and '.join(never)}",
        )
    if pods := [each for each in unread if each.record.namespace not in never]:
        yield error(
            f"{_such_as(pods)} that the webhook has not read, such as one from before FracGPU was "
            "installed: whether it runs or waits, it gets no card",
            cure=f"{create_anew(pods[0])}; if that changes nothing, it is left out: by the chart's "
            "webhook.namespaceSelector or webhook.objectSelector, or by excludedNamespaces of the "
            "configuration's admission",
            needs=[WEBHOOK_REGISTERED, INSTALLED],
        )


def _was_not_read(pod: PodInfo) -> bool:
    """Report whether a pod requests a share, and the webhook has not seen it."""
    by_annotation = any(key in pod.annotations for key in (names.FRACTION, names.MEMORY))
    asks = by_annotation or limits_memory(pod)
    return asks and names.GRANTED not in pod.annotations and not pod.record.terminating


def _such_as(pods: Sequence[PodInfo]) -> str:
    others = f", like {counted(len(pods) - 1, 'other')}," if len(pods) > 1 else ""
    return f"pod {pods[0].record.key}{others} requests a share"


def _counted(facts: Facts) -> Iterator[Finding]:
    for workload in known(facts.queued):
        template = template_of(workload)
        asked = [key for key in _ASKING if key in annotations_of(template)]
        if asked and not requests_memory(template):
            metadata = workload["metadata"]
            kind = str(workload.get("kind", "workload"))
            yield warning(
                f"{kind} {metadata.get('namespace')}/{name_of(workload)} asks by "
                f"{', '.join(asked)}, which becomes {names.GPU_MEM} only when its pods are "
                "admitted: Kueue counts the template, and admits it as if it needed no card",
                cure=f"label the namespace {names.GRANT_TEMPLATES_LABEL}=true and create the "
                f"{kind} again, or write the limit {names.GPU_MEM}: MIB into the template instead",
            )


CHECKS: Final = (
    Check(name="grants", title="Every pod that requests a share was admitted", find=_granted),
    Check(name="kueue", title="Kueue can count every template", find=_counted),
)
