"""Whether other systems can count what workloads request: Kueue sees templates, not pods."""

from collections.abc import Iterator
from typing import Final

from fracgpu import names
from fracgpu.doctor.facts import (
    Facts,
    annotations_of,
    known,
    name_of,
    requests_memory,
    template_of,
)
from fracgpu.doctor.finding import Check, Finding, warning

QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
"""The label by which Kueue admits a workload: https://kueue.sigs.k8s.io/docs/tasks/run/jobs/"""

_ASKING: Final = (names.FRACTION, names.MEMORY, names.CARDS)


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


CHECKS: Final = (Check(name="kueue", title="Kueue can count every template", find=_counted),)
