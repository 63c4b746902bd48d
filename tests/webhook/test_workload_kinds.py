from webhook.admission.verdict import OURS, Allowed, Denied, Patched
from webhook.admission_config import BUILT_IN_WORKLOADS


def test_every_built_in_kind_is_known_by_its_templates() -> None:
    assert {
        (workload.group, workload.kind): workload.templates for workload in BUILT_IN_WORKLOADS
    } == {
        ("apps", "Deployment"): ("spec.template",),
        ("apps", "StatefulSet"): ("spec.template",),
        ("apps", "DaemonSet"): ("spec.template",),
        ("apps", "ReplicaSet"): ("spec.template",),
        ("", "ReplicationController"): ("spec.template",),
        ("", "PodTemplate"): ("template",),
        ("batch", "Job"): ("spec.template",),
        ("batch", "CronJob"): ("spec.jobTemplate.spec.template",),
        ("argoproj.io", "Rollout"): ("spec.template",),
        ("batch.volcano.sh", "Job"): ("spec.tasks.*.template",),
        ("jobset.x-k8s.io", "JobSet"): ("spec.replicatedJobs.*.template.spec.template",),
        ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): (
            "spec.leaderWorkerTemplate.leaderTemplate",
            "spec.leaderWorkerTemplate.workerTemplate",
        ),
        ("ray.io", "RayCluster"): (
            "spec.headGroupSpec.template",
            "spec.workerGroupSpecs.*.template",
        ),
        ("ray.io", "RayJob"): (
            "spec.rayClusterSpec.headGroupSpec.template",
            "spec.rayClusterSpec.workerGroupSpecs.*.template",
        ),
        ("ray.io", "RayService"): (
            "spec.rayClusterConfig.headGroupSpec.template",
            "spec.rayClusterConfig.workerGroupSpecs.*.template",
        ),
    }


def test_an_outcome_belongs_to_our_own_language_unless_nothing_was_asked() -> None:
    assert Patched(patch=b"[]", granted="").dialect == Denied(message="").dialect == OURS
    assert Allowed().dialect == "none"
