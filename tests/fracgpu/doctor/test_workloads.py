"""Templates that Kueue cannot count, planted one by one."""

from typing import Any

from fracgpu.doctor.finding import Verdict
from tests.support.examined import found_by, healthy, result_of


def a_job(*, annotations: dict[str, str], limits: dict[str, str]) -> dict[str, Any]:
    return {
        "kind": "Job",
        "metadata": {
            "name": "train",
            "namespace": "ml",
            "labels": {"kueue.x-k8s.io/queue-name": "gpus"},
        },
        "spec": {
            "template": {
                "metadata": {"annotations": annotations},
                "spec": {"containers": [{"name": "c", "resources": {"limits": limits}}]},
            }
        },
    }


def test_a_template_whose_resource_appears_only_at_admission_is_found() -> None:
    job = a_job(annotations={"fracgpu.io/fraction": "0.5"}, limits={"cpu": "1"})

    finding = found_by("kueue", healthy(queued=(job,)))

    assert "Job ml/train asks by fracgpu.io/fraction" in finding.seen
    assert "limit fracgpu.io/gpu-mem: MIB into the template" in finding.cure


def test_a_template_with_the_limit_or_without_a_request_is_fine() -> None:
    limit = a_job(annotations={}, limits={"fracgpu.io/gpu-mem": "4096"})
    plain = a_job(annotations={}, limits={"cpu": "1"})

    assert result_of("kueue", healthy(queued=(limit, plain))).verdict is Verdict.FINE
