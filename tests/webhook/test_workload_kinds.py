from webhook.admission.verdict import OURS, Allowed, Denied, Patched
from webhook.admission_config import BUILT_IN_WORKLOADS


def test_every_kind_of_kubernetes_own_workloads_is_known_by_its_template() -> None:
    assert {
        (workload.group, workload.kind): workload.templates for workload in BUILT_IN_WORKLOADS
    } == {
        ("apps", "Deployment"): ("spec.template",),
        ("apps", "StatefulSet"): ("spec.template",),
        ("apps", "DaemonSet"): ("spec.template",),
        ("apps", "ReplicaSet"): ("spec.template",),
        ("", "ReplicationController"): ("spec.template",),
        ("batch", "Job"): ("spec.template",),
        ("batch", "CronJob"): ("spec.jobTemplate.spec.template",),
    }


def test_an_outcome_belongs_to_our_own_language_unless_nothing_was_asked() -> None:
    assert Patched(patch=b"[]", granted="").dialect == Denied(message="").dialect == OURS
    assert Allowed().dialect == "none"
