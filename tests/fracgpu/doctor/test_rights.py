"""Whether each role's account has its rights, and who has installed what there is."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest

from fracgpu.doctor.facts import Facts, Objects
from fracgpu.doctor.finding import Verdict
from tests.fracgpu.doctor.test_cures import of_helm
from tests.support.examined import Json, found_by, healthy, result_of, shipped, with_claims

# Not where cert-manager makes the certificates.
OF_OWN_AUTHORITY = ("create secrets", "update secrets", "get deployments.apps", "patch deploy")


def with_one_right_less(roles: Objects) -> Iterator[tuple[str, str, Objects]]:
    """Yield the account that loses a right, the right in words, and the roles without it."""
    for role in roles:
        for rule in role.get("rules") or ():
            for resource, verb in product(rule["resources"], rule["verbs"]):
                kind, slash, part = resource.partition("/")
                group = "".join(f".{group}" for group in rule["apiGroups"] if group)
                less: list[Json] = [
                    {**rule, "resources": [resource], "verbs": set(rule["verbs"]) - {verb}},
                    {**rule, "resources": set(rule["resources"]) - {resource}},
                ]
                left = [*(each for each in role["rules"] if each is not rule), *less]
                changed = [{**role, "rules": left} if each is role else each for each in roles]
                words = f"{verb} {kind}{group}{slash}{part}"
                yield role["metadata"]["name"], words, tuple(changed)


@pytest.mark.parametrize("facts", [healthy(), with_claims()], ids=["slots", "claims"])
def test_each_right_that_deploy_grants_is_missed_by_its_name(facts: Facts) -> None:
    assert result_of("rights", facts).verdict is Verdict.FINE
    assert isinstance(facts.access_roles, tuple)
    missed = 0
    for account, words, roles in with_one_right_less(facts.access_roles):
        if not words.startswith(OF_OWN_AUTHORITY) or account != "fracgpu-certs":
            finding = found_by("rights", replace(facts, access_roles=roles))
            said = f"{account}, as ServiceAccount {account}, may not {words}: its ClusterRole, "
            assert finding.observed.startswith(said)
            assert finding.cure.startswith("kubectl apply --server-side")
            missed += 1
    assert missed > 90


def bound(subjects: list[Json]) -> Facts:
    """Return an installation whose webhook's roles are bound to these subjects."""
    bindings = (*shipped("ClusterRoleBinding"), *shipped("RoleBinding"))
    for body in bindings:
        if body["metadata"]["name"] == "fracgpu-webhook":
            body["subjects"] = subjects
    return healthy(access_bindings=bindings)


def test_a_role_that_nothing_is_bound_to_may_nothing() -> None:
    other = {"kind": "ServiceAccount", "name": "fracgpu-webhook", "namespace": "default"}

    for subjects in ([], [other]):
        assert found_by("rights", bound(subjects)).observed.startswith(
            "fracgpu-webhook, as ServiceAccount fracgpu-webhook, may not list/watch nodes, "
            "list/watch pods, list/watch/get namespaces, list/watch secrets, list/watch configmaps,"
            " create events: its ClusterRole, its Role or a binding of them is missing"
        )


@pytest.mark.parametrize(
    "subject",
    [
        {"kind": "User", "name": "system:serviceaccount:fracgpu-system:fracgpu-webhook"},
        {"kind": "Group", "name": "system:serviceaccounts:fracgpu-system"},
        {"kind": "Group", "name": "system:serviceaccounts"},
    ],
)
def test_an_account_has_the_rights_of_its_groups(subject: Json) -> None:
    assert result_of("rights", bound([subject])).verdict is Verdict.FINE


def test_agents_that_read_in_the_name_of_their_node_need_not_read_pods_themselves() -> None:
    roles = (*shipped("ClusterRole"), *shipped("Role"))
    for rule in roles[[each["metadata"]["name"] for each in roles].index("fracgpu-deviceplugin")][
        "rules"
    ]:
        if rule["resources"] == ["pods"]:
            rule["verbs"] = ["patch", "delete"]
    agents = shipped("DaemonSet")
    variable = {"name": "FRACGPU_DEVICEPLUGIN_READ_PODS_AS_NODE", "value": "true"}
    assert "may not list/watch pods:" in found_by("rights", healthy(access_roles=roles)).observed
    for body in agents:
        body["spec"]["template"]["spec"]["containers"][0].setdefault("env", []).append(variable)

    facts = healthy(access_roles=roles, daemon_sets=agents)

    assert result_of("rights", facts).verdict is Verdict.FINE


def test_what_helm_and_kustomize_have_installed_side_by_side_is_named() -> None:
    policies = of_helm("ValidatingAdmissionPolicy")
    for body in policies:
        body["metadata"]["labels"]["app.kubernetes.io/part-of"] = "fracgpu"

    finding = found_by("installers", healthy(policies=policies))

    assert finding.observed.startswith(f"Helm has installed {len(policies)} objects of FracGPU, ")
    assert "and not the 41 others (fracgpu-certs, " in finding.observed
    assert finding.cure.startswith("fracgpu uninstall --yes")
