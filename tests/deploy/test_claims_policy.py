"""charts/fracgpu: the policy on claims, with and without a kube-scheduler of ours."""

import copy
from typing import Any, Final

import pytest

from tests.support.helm import rendered
from tests.support.policies import ADMIN, SCHEDULER, refusals

Json = dict[str, Any]

NAME: Final = "fracgpu-claims"
PROTECTION: Final = "resource.kubernetes.io/delete-protection"
FORBIDDEN: Final = "The FracGPU scheduler makes and deletes only"


def the_policy(values: Json) -> Json:
    (spec,) = [
        body["spec"]
        for body in rendered(values)
        if body["kind"] == "ValidatingAdmissionPolicy" and body["metadata"]["name"] == NAME
    ]
    return dict(spec)


def a_claim(name: str, device_class: str, *, ranked: bool = False, **request: Any) -> Json:
    wanted = {"deviceClassName": device_class, **request}
    asked = {"firstAvailable": [{"name": "x", **wanted}]} if ranked else {"exactly": wanted}
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": True}
    return {
        "metadata": {"name": name, "namespace": "ml", "ownerReferences": [owner]},
        "spec": {"devices": {"requests": [{"name": "c", **asked}]}},
    }


def passing(spec: Json, claim: Json) -> list[str]:
    """Return which writes of kube-scheduler pass: to make it, add the finalizer, and delete it."""
    allocated = copy.deepcopy(claim)
    allocated["metadata"]["finalizers"] = [PROTECTION]
    found = []
    for operation, new, old in (
        ("create", claim, None),
        ("update", allocated, claim),
        ("delete", None, allocated),
    ):
        said = refusals(NAME, new, old=old, sender=SCHEDULER, resource="resourceclaims", spec=spec)
        assert len(said) <= 1
        assert all(one.startswith(FORBIDDEN) for one in said)
        found += [] if said else [operation]
    return found


def test_our_kube_scheduler_allocates_claims_for_devices_of_others_and_no_more_of_ours() -> None:
    own = the_policy({"wiring": "devicePlugin+claims"})
    none = [
        the_policy({"wiring": "claims"}),
        the_policy({"wiring": "devicePlugin+claims", "scheduler": {"mode": "cluster"}}),
    ]
    every = ["create", "update", "delete"]

    for ranked in (False, True):
        nic = a_claim("nic", "nic.example.com", ranked=ranked)
        assert passing(own, nic) == every
        assert [passing(one, nic) for one in none] == [[], []]
    for spec in (own, *none):
        for ranked in (False, True):
            for device_class in ("fracgpu", "fracgpu-placed"):
                assert passing(spec, a_claim("mine", device_class, ranked=ranked)) == []
        tolerating = a_claim("mine", "other", tolerations=[{"key": "fracgpu.io/kept"}])
        assert passing(spec, tolerating) == []
        assert passing(spec, a_claim("fracgpu-0123456789", "nic.example.com")) == ["delete"]
        made = a_claim("fracgpu-0123456789", "fracgpu-placed")
        assert passing(spec, made) == ["create", "delete"]


@pytest.mark.parametrize("wiring", ["claims", "devicePlugin+claims"])
def test_the_schedulers_account_makes_no_template_and_others_no_claim_of_ours(wiring: str) -> None:
    spec = the_policy({"wiring": wiring})
    claim = a_claim("nic", "nic.example.com")
    template = {"metadata": {"name": "t", "namespace": "ml"}, "spec": {"spec": claim["spec"]}}

    said = refusals(NAME, template, sender=SCHEDULER, resource="resourceclaimtemplates", spec=spec)
    assert len(said) == 1
    ours = a_claim("fracgpu-0123456789", "fracgpu")
    (sentence,) = refusals(NAME, ours, sender=ADMIN, resource="resourceclaims", spec=spec)
    assert sentence.endswith("choose another name.")
    assert refusals(NAME, claim, sender=ADMIN, resource="resourceclaims", spec=spec) == []
