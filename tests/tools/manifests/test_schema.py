"""The chart refuses a setting that the roles would refuse, and accepts what they accept."""

from collections.abc import Callable
from typing import Any, Final

import pytest
import yaml

from component.config_keys import ADMISSION, PLACEMENT, REBALANCER
from component.placement_config import parse_strategy
from rebalancer.config import parse_policy
from tests.support.helm import template
from webhook.admission_config import AdmissionConfig, parse_admission

Json = dict[str, Any]
PARSERS: Final[dict[str, Callable[[str], object]]] = {
    ADMISSION: lambda text: parse_admission(text, base=AdmissionConfig()),
    PLACEMENT: parse_strategy,
    REBALANCER: parse_policy,
}
FREEZE: Final = {"schedule": "0 8 * * mon-fri", "duration": "10h", "timeZone": "Europe/Berlin"}
JOB: Final = {
    "group": "kubeflow.org",
    "kind": "PyTorchJob",
    "templates": ["spec.pytorchReplicaSpecs.*.template"],
}
ACCEPTED: Final = [
    (ADMISSION, {}),
    (ADMISSION, {"defaultModel": "NVIDIA-A100*", "whenNoCapacity": "wait"}),
    (ADMISSION, {"defaultModel": ["*A100*", "*H100*"], "defaultClassMib": 40960}),
    (ADMISSION, {"schedulerName": "", "voidOthers": False, "labelReservedMib": 0}),
    (ADMISSION, {"excludedNamespaces": ["a"], "workloads": [JOB]}),
    (ADMISSION, {"dialects": ["kai"], "dialectOptions": {"gpushareUnit": "MiB", "kaiRuns": True}}),
    (ADMISSION, {"dialectOptions": {"hamiMemoryFactor": 1024}}),
    (PLACEMENT, {"strategy": "pack"}),
    (REBALANCER, {"mode": "off", "makeRoom": "off", "paused": True, "aggressiveness": 2}),
    (REBALANCER, {"mode": False}),  # as YAML 1.1 reads off
    (REBALANCER, {"mode": "active", "hotRatio": 0.9, "changeFreezes": [FREEZE]}),
    (REBALANCER, {"resetBreakersAt": "2026-01-31T12:00:00Z"}),
    (REBALANCER, {"fastWindowS": 1200, "settleS": "600"}),  # of earlier versions
]
REFUSED: Final = [
    (ADMISSION, {"whenNoCapacity": "wiat"}),
    (ADMISSION, {"defaultModle": "x"}),
    (ADMISSION, {"defaultModel": []}),
    (ADMISSION, {"defaultClassMib": 0}),
    (ADMISSION, {"defaultClassMib": True}),
    (ADMISSION, {"schedulerName": "Not_A_Name"}),
    (ADMISSION, {"voidOthers": "yes"}),
    (ADMISSION, {"labelReservedMib": -1}),
    (ADMISSION, {"excludedNamespaces": ["A b"]}),
    (ADMISSION, {"workloads": [{**JOB, "kind": "lower"}]}),
    (ADMISSION, {"workloads": [{"group": "", "kind": "Job"}]}),
    (ADMISSION, {"dialects": ["kia"]}),
    (ADMISSION, {"dialectOptions": {"gpushareUnit": "GB"}}),
    (ADMISSION, {"dialectOptions": {"hamiMemoryFactor": 1025}}),
    (ADMISSION, {"dialectOptions": {"kaiRun": True}}),
    (PLACEMENT, {"strategy": "pakc"}),
    (PLACEMENT, {"stratgy": "pack"}),
    (REBALANCER, {"mode": "actve"}),
    (REBALANCER, {"makeRoom": "dryRun"}),
    (REBALANCER, {"paused": "yes"}),
    (REBALANCER, {"aggressiveness": 9}),
    (REBALANCER, {"hotRatio": 2}),
    (REBALANCER, {"hotratio": 0.9}),
    (REBALANCER, {"changeFreezes": [{"schedule": "0 8 * * *"}]}),
    (REBALANCER, {"changeFreezes": [{**FREEZE, "zone": "UTC"}]}),
    (REBALANCER, {"resetBreakersAt": 5}),
]


@pytest.mark.parametrize(("key", "values"), ACCEPTED)
def test_what_a_role_accepts_is_accepted(key: str, values: Json) -> None:
    PARSERS[key](yaml.safe_dump(values))

    done = template({"config": {key: values}})

    assert done.ok, done.error


@pytest.mark.parametrize(("key", "values"), REFUSED)
def test_what_a_role_refuses_is_refused_and_named(key: str, values: Json) -> None:
    with pytest.raises(ValueError, match=next(iter(values))):
        PARSERS[key](yaml.safe_dump(values))

    done = template({"config": {key: values}})

    assert not done.ok
    assert f"/config/{key}" in done.error
    assert next(iter(values)) in done.error


@pytest.mark.parametrize(
    "word",
    ["dney", "deny", ["Dney"], ["Warn", "Warn"], [], ["Deny", "Warn"], ["Audit"]],
    ids=str,
)
def test_what_no_binding_of_a_policy_may_do_or_nobody_would_notice_is_refused(
    word: object,
) -> None:
    done = template({"policies": {"devices": word}})

    assert not done.ok
    assert "/policies/devices" in done.error


@pytest.mark.parametrize("actions", [["Deny"], ["Audit", "Warn"]], ids=str)
def test_a_policy_may_deny_or_warn_and_write_to_the_audit_log_too(actions: list[str]) -> None:
    assert template({"policies": {"devices": actions}}).ok


def test_a_policy_that_is_gone_is_refused_and_named() -> None:
    done = template({"policies": {"foreignAssignments": "everywhere"}})

    assert not done.ok
    assert "foreignAssignments" in done.error
