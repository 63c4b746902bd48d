"""charts/fracgpu: the objects of deploy/ and overlays/, what values change, what is refused."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from certs.service import adopted_of, desired_of
from certs.settings import CertsSettings
from fracgpu import names
from process.settings import load
from tests.deploy.test_alerts import alerts
from tests.deploy.test_certificates import built
from tests.support.documented import documented
from tests.support.helm import (
    CHART,
    OPERATOR,
    ROOT,
    by_key,
    helm,
    rendered,
    template,
)
from tests.support.yaml_files import read_documents, read_yaml

Json = dict[str, Any]
WITH_NAMESPACE: Final = {"namespace": {"create": True}}

# What an overlay changes, said in values.
SAME: Final[Mapping[str, Json]] = {
    "deploy": {},
    "overlays/claims": {"wiring": "claims"},
    "overlays/cert-manager": {"certificates": {"mode": "cert-manager"}},
    "overlays/cluster-scheduler": {"scheduler": {"mode": "cluster"}},
    "overlays/cluster-scheduler/prepare": {"scheduler": {"mode": "prepare"}},
    "overlays/gke": {"platform": "gke"},
    "overlays/grafana": {"dashboards": {"enabled": True}},
    "overlays/k3s": {"platform": "k3s"},
    "overlays/mps": {"mps": {"enabled": True}},
    "overlays/nvidia-runtime-class": {"deviceplugin": {"runtimeClassName": "nvidia"}},
    "overlays/openshift": {"platform": "openshift"},
    "overlays/prometheus-operator": {"prometheus": {"operator": {"enabled": "always"}}},
    "overlays/read-as-node": {"deviceplugin": {"readAsNode": True}},
    "overlays/simulated-cards": {"simulatedCards": {"enabled": True}},
}
OVERLAYS: Final = sorted(
    str(path.parent.relative_to(ROOT)) for path in ROOT.glob("overlays/**/kustomization.yaml")
)


HELM_LABELS: Final = {"app.kubernetes.io/managed-by", "helm.sh/chart"}
# kustomize names such a ConfigMap after its content; the chart writes a sum of it on the pods.
HASH: Final = re.compile(r"(profile|simulated-cards|kube-scheduler)-[a-z0-9]{10}(?=\")")


def comparable(objects: tuple[Json, ...]) -> dict[str, Json]:
    """Return objects by key, without what only Helm or only kustomize says of them."""
    found = []
    for each in objects:
        body = json.loads(HASH.sub(r"\1", json.dumps(each)))
        if "helm.sh/hook" in body["metadata"].get("annotations", {}):
            continue
        labels = body["metadata"]["labels"]
        body["metadata"]["labels"] = {k: v for k, v in labels.items() if k not in HELM_LABELS}
        notes = body.get("spec", {}).get("template", {}).get("metadata", {}).get("annotations", {})
        for key in [key for key in notes if key.startswith("checksum/")]:
            del notes[key]
        found.append(body)
    return by_key(found)


def test_every_overlay_has_values_that_say_the_same() -> None:
    assert sorted(SAME) == ["deploy", *OVERLAYS]


@pytest.mark.parametrize("folder", SAME)
def test_the_chart_renders_the_objects_of_kustomize(folder: str) -> None:
    theirs = comparable(built(folder))
    ours = comparable(rendered({**WITH_NAMESPACE, **SAME[folder]}))

    assert sorted(ours) == sorted(theirs)
    for key, body in theirs.items():
        assert ours[key] == body


def test_what_is_applied_by_hand_has_no_job_that_cleans_the_nodes() -> None:
    kinds = {
        create: {body["kind"] for body in rendered({"namespace": {"create": create}})}
        for create in (False, True)
    }

    assert "Job" in kinds[False]
    assert "Job" not in kinds[True]


def built_from(kustomization: str, name: str) -> tuple[Json, ...]:
    """Return what kustomize makes of an overlay of the test's own, beside ours."""
    folder = ROOT / "build" / f"overlay-{name}"
    folder.mkdir(parents=True)
    try:
        (folder / "kustomization.yaml").write_text(kustomization)
        return built(str(folder.relative_to(ROOT)))
    finally:
        (folder / "kustomization.yaml").unlink()
        folder.rmdir()


def test_overlays_that_are_combined_are_values_that_are_combined(tmp_path: Path) -> None:
    components = (
        "cert-manager",
        "cluster-scheduler/files",
        "cluster-scheduler/switch",
        "grafana",
        "platforms/openshift",
        "prometheus-operator",
    )
    overlay = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": ["../../overlays/simulated-cards"],
        "components": [f"../../deploy/{name}" for name in components],
    }
    theirs = comparable(built_from(yaml.safe_dump(overlay), name=tmp_path.name))

    ours = comparable(
        rendered(
            {
                **WITH_NAMESPACE,
                "certificates": {"mode": "cert-manager"},
                "dashboards": {"enabled": True},
                "platform": "openshift",
                "prometheus": {"operator": {"enabled": "always"}},
                "scheduler": {"mode": "cluster"},
                "simulatedCards": {"enabled": True},
            }
        )
    )

    assert ours == theirs


def test_helm_install_leaves_the_namespace_to_create_namespace() -> None:
    without = {key for key in by_key(rendered()) if key.startswith("Namespace ")}

    assert without == set()


def test_a_cluster_with_the_prometheus_operator_is_watched_without_a_word() -> None:
    kinds = {body["kind"] for body in rendered(serves=[OPERATOR])}

    assert {"PodMonitor", "PrometheusRule"} <= kinds
    assert not {"PodMonitor", "PrometheusRule"} & {body["kind"] for body in rendered()}


@pytest.mark.parametrize(
    ("base", "begins"),
    [
        ("", "docs/runbooks.md#"),
        (
            "https://git.example.com/gpu/blob/v1",
            "https://git.example.com/gpu/blob/v1/docs/runbooks.md#",
        ),
        ("https://git.example.com/gpu/", "https://git.example.com/gpu/docs/runbooks.md#"),
    ],
)
def test_every_alert_has_the_address_of_its_runbook_below_the_base_that_was_given(
    base: str, begins: str
) -> None:
    operator = {"enabled": "always", "runbookBaseUrl": base}

    addresses = runbooks(rendered({"prometheus": {"operator": operator}}))

    assert len(addresses) == len(alerts())
    assert addresses == {alert: f"{begins}{alert.lower()}" for alert in addresses}


def test_the_base_of_runbooks_is_set_with_kustomize_as_the_page_says(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    replacement = page.partition("```yaml runbooks")[2].partition("```")[0]
    addresses = runbooks(
        built_from(replacement.replace("../deploy", "../../deploy"), tmp_path.name)
    )

    assert len(addresses) == len(alerts())
    assert addresses == {
        alert: f"https://git.example.com/fracgpu/blob/v0.1.0/docs/runbooks.md#{alert.lower()}"
        for alert in addresses
    }


def runbooks(objects: tuple[Json, ...]) -> dict[str, str]:
    """Return the address of each alert's runbook."""
    (rules,) = (body for body in objects if body["kind"] == "PrometheusRule")
    return {
        rule["alert"]: rule["annotations"]["runbook_url"]
        for group in rules["spec"]["groups"]
        for rule in group["rules"]
        if "alert" in rule
    }


def test_a_grafana_that_looks_for_another_label_finds_the_dashboards() -> None:
    found = [
        body["metadata"]["labels"]
        for body in rendered({"dashboards": {"enabled": True, "labels": {"folder": "gpu"}}})
        if "dashboard" in body["metadata"]["name"]
    ]

    assert len(found) == 4
    for labels in found:
        assert labels["grafana_dashboard"] == "1"
        assert labels["folder"] == "gpu"


def images(*args: Any, **more: Any) -> set[str]:
    return {
        container["image"]
        for body in rendered(*args, **more)
        if body["kind"] in ("Deployment", "DaemonSet")
        for container in body["spec"]["template"]["spec"]["containers"]
    }


@pytest.mark.parametrize(
    ("version", "tag"),
    [("1.30.14", "v1.30.14"), ("v1.33.5-gke.1080000", "v1.33.5"), ("v1.34.1+k3s1", "v1.34.1")],
)
def test_kube_scheduler_is_of_the_clusters_version(version: str, tag: str) -> None:
    assert f"registry.k8s.io/kube-scheduler:{tag}" in images(version=version)


def test_a_mirror_holds_every_image_and_a_digest_pins_ours() -> None:
    digest = f"sha256:{'a' * 64}"

    found = images(
        {
            "imageRegistry": "mirror.example.com/gpu/",
            "image": {"tag": "1.2.3", "digest": digest},
            "imagePullSecrets": [{"name": "mirror"}],
        }
    )

    assert found == {
        f"mirror.example.com/gpu/fracgpu:1.2.3@{digest}",
        "mirror.example.com/gpu/kube-scheduler:v1.36.2",
    }


def deployment(name: str, values: Json) -> Json:
    found = by_key(rendered(values))
    spec: Json = found[f"Deployment fracgpu-system/{name}"]["spec"]
    return spec


def test_every_pod_gets_the_pull_secrets() -> None:
    secrets = [{"name": "mirror"}]
    values = {"imagePullSecrets": secrets, "scheduler": {"mode": "prepare"}}

    specs = [
        body["spec"]["template"]["spec"]
        for body in rendered(values)
        if body["kind"] in ("Deployment", "DaemonSet")
    ]

    assert len(specs) == 6
    assert [spec["imagePullSecrets"] for spec in specs] == [secrets] * 6


def test_what_users_set_reaches_the_pods() -> None:
    values = {
        "webhook": {
            "replicas": 3,
            "nodeSelector": {"pool": "system"},
            "tolerations": [{"key": "system", "operator": "Exists"}],
            "resources": {"requests": {"cpu": "1"}},
            "podLabels": {"team": "ml"},
            "podAnnotations": {"note": "x"},
            "extraArgs": ["--log-level=debug"],
            "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy"}],
            "affinity": {"nodeAffinity": {}},
            "priorityClassName": "mine",
            "updateStrategy": {"type": "Recreate"},
            "podSecurityContext": {"fsGroup": 7},
            "securityContext": {"privileged": False},
        },
        "revisionHistoryLimit": 3,
        "logLevel": "warning",
    }

    spec = deployment("fracgpu-webhook", values)

    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert spec["replicas"] == 3
    assert pod["nodeSelector"] == {"pool": "system"}
    assert pod["tolerations"] == [{"key": "system", "operator": "Exists"}]
    assert pod["affinity"] == {"nodeAffinity": {}}
    assert pod["priorityClassName"] == "mine"
    assert container["resources"]["requests"]["cpu"] == "1"
    assert spec["strategy"] == {"type": "Recreate"}
    assert spec["revisionHistoryLimit"] == 3
    assert pod["securityContext"]["fsGroup"] == 7
    assert container["securityContext"]["privileged"] is False
    assert "--log-level=warning" in container["args"]
    assert container["args"][-1] == "--log-level=debug"
    assert container["env"] == [{"name": "HTTPS_PROXY", "value": "http://proxy"}]
    assert spec["template"]["metadata"]["labels"]["team"] == "ml"
    assert spec["template"]["metadata"]["annotations"]["note"] == "x"


def test_the_rebalancer_gets_the_url_and_the_credentials_of_prometheus() -> None:
    url = "https://prometheus.example.com/api"

    values = {"prometheus": {"url": url, "credentialsSecret": "mine"}}
    pod = deployment("fracgpu-rebalancer", values)["template"]["spec"]

    (container,) = pod["containers"]
    assert {"name": "FRACGPU_REBALANCER_PROMETHEUS_URL", "value": url} in container["env"]
    assert "mine" in {volume.get("secret", {}).get("secretName") for volume in pod["volumes"]}


def test_another_namespace_may_scrape() -> None:
    policies = [body for body in rendered({"prometheus": {"namespace": "observability"}})
                if body["kind"] == "NetworkPolicy"]  # fmt: skip

    assert "observability" in str(policies)
    assert "'monitoring'" not in str(policies)


def test_settings_reach_the_configmaps() -> None:
    values = {
        "config": {"rebalancer": {"mode": "active"}, "admission": {"dialects": ["kai"]}},
        "policies": {"devices": ["Deny"]},
    }

    found = by_key(rendered(values))

    data = found["ConfigMap fracgpu-system/fracgpu-config"]["data"]
    assert read_yaml(data["rebalancer"])["mode"] == "active"
    assert read_yaml(data["admission"])["dialects"] == ["kai"]
    for name in ("fracgpu-devices", "fracgpu-device-environment"):
        binding = found[f"ValidatingAdmissionPolicyBinding /{name}"]
        assert binding["spec"]["validationActions"] == ["Deny"]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ({"networkPolicies": {"enabled": False}}, "NetworkPolicy"),
        ({"podDisruptionBudgets": {"enabled": False}}, "PodDisruptionBudget"),
        ({"crds": {"install": False}}, "CustomResourceDefinition"),
    ],
)
def test_what_is_switched_off_is_not_there(values: Json, kind: str) -> None:
    assert kind in {body["kind"] for body in rendered()}
    assert kind not in {body["kind"] for body in rendered(values)}


def test_an_issuer_of_ones_own_signs_and_none_of_ours_is_made() -> None:
    issuer = {"kind": "ClusterIssuer", "name": "corporate"}

    objects = rendered({"certificates": {"mode": "cert-manager", "issuer": issuer}})

    certificates = [body for body in objects if body["kind"] == "Certificate"]
    assert [body["spec"]["issuerRef"] for body in certificates] == [issuer] * 3
    assert not [body for body in objects if body["kind"] == "Issuer"]


def test_kept_crds_stay_when_the_release_goes() -> None:
    (crd,) = [body for body in rendered({"crds": {"keep": True}})
              if body["kind"] == "CustomResourceDefinition"]  # fmt: skip

    assert crd["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"webhook": {"replicas": "three"}}, "/webhook/replicas"),
        ({"webhook": {"replica": 3}}, "replica"),
        ({"platform": "azure"}, "/platform"),
        ({"prometheus": {"url": "prometheus:9090"}}, "/prometheus/url"),
        ({"webhook": {"serviceAccount": {"name": "x' || true || '"}}}, "/webhook/serviceAccount"),
        ({"webhook": {"serviceAccount": {"create": False}}}, "webhook.serviceAccount.name"),
        ({"commonLabels": {"app.kubernetes.io/part-of": "x"}}, "app.kubernetes.io/part-of"),
        ({"webhook": {"resources": {"limit": {}}}}, "limit"),
        ({"webhook": None}, "missing property 'webhook'"),  # nothing but comments below it
        ({"config": None}, "missing property 'config'"),
        ({"image": {"registry": "https://registry.example.com/team"}}, "/image/registry"),
        ({"image": {"repository": "fracgpu:0.1.0"}}, "/image/repository"),
        ({"image": {"tag": "v0.1.0 "}}, "/image/tag"),
        ({"imageRegistry": "oci://mirror.example.com"}, "/imageRegistry"),
        ({"certificates": {"issuer": {"name": "x"}}}, "certificates.issuer needs kind and name"),
        (
            {"certificates": {"issuer": {"kind": "Issuer", "name": "x"}}},
            "certificates.mode is own",
        ),
    ],
)
def test_a_bad_value_is_refused_and_named(values: Json, said: str) -> None:
    done = template(values)

    assert not done.ok
    assert said in done.error


HOSTILE: Final = 'x"}}\n---\nkind: ClusterRoleBinding # {{ fail "no" }} \\ \' : &a *b ${X}'


@pytest.mark.parametrize(
    "values",
    [
        {"imagePullSecrets": [{"name": HOSTILE}]},
        {"webhook": {"extraArgs": [HOSTILE]}},
        {"webhook": {"nodeSelector": {HOSTILE: HOSTILE}}},
        {"prometheus": {"namespace": HOSTILE}},
        {"config": {"admission": {"defaultModel": HOSTILE}}},
        {"simulatedCards": {"enabled": True, "cards": HOSTILE}},
        {"certificates": {"mode": "cert-manager", "issuer": {"kind": "I", "name": HOSTILE}}},
    ],
    ids=lambda values: json.dumps(values)[:40],
)
def test_no_value_adds_an_object_or_ends_its_own_field(values: Json) -> None:
    expected = sorted(
        (body["kind"], body["metadata"].get("namespace", ""))
        for body in rendered(_harmless(values))
    )

    found = sorted(
        (body["kind"], body["metadata"].get("namespace", "")) for body in rendered(values)
    )

    assert found == expected


def _harmless(value: Any) -> Any:
    match value:
        case dict():
            return {key.replace(HOSTILE, "x"): _harmless(inner) for key, inner in value.items()}
        case list():
            return [_harmless(inner) for inner in value]
        case str():
            return value.replace(HOSTILE, "x")
        case _:
            return value


def test_no_bundle_is_rendered_that_the_certificates_role_writes() -> None:
    """An empty one would be put back at each upgrade, or shown as a difference for ever."""
    assert "caBundle" not in template().out


@pytest.mark.parametrize("values", [{}, *SAME.values()], ids=str)
def test_helm_lint_finds_nothing(values: Json) -> None:
    done = helm("lint", str(CHART), "--namespace=fracgpu-system", values=values)

    assert done.ok, done.out
    assert "[WARNING]" not in done.out
    assert "[ERROR]" not in done.out


def everything(**more: Any) -> Json:
    """Return values that render every template."""
    values: Json = {
        **WITH_NAMESPACE,
        "certificates": {"mode": "cert-manager"},
        "dashboards": {"enabled": True},
        "mps": {"enabled": True, "sharedMemory": True},
        "platform": "openshift",
        "prometheus": {"operator": {"enabled": "always"}},
        "scheduler": {"mode": "prepare"},
        "simulatedCards": {"enabled": True},
    }
    return {**values, **more}


def objects_in(namespace: str, values: Json) -> tuple[Json, ...]:
    """Return the objects of a release with another name, in that namespace."""
    done = helm("template", "sharing", str(CHART), f"--namespace={namespace}", values=values)
    assert done.ok, done.error
    return tuple(body for body in read_documents(done.out) if body)


def test_every_template_is_rendered_by_some_values() -> None:
    templates = {
        str(path.relative_to(CHART / "templates"))
        for path in CHART.glob("templates/**/*.yaml")
        if path.name != "checks.yaml"
    }

    rendered_from = {
        source
        for values in (everything(), {}, {"wiring": "claims"})
        for source in re.findall(
            "^# Source: fracgpu/templates/(.*)$", template(values).out, re.MULTILINE
        )
    }

    assert rendered_from == templates


def test_the_claims_wiring_has_no_scheduler_of_ours_and_no_right_to_place_a_pod() -> None:
    objects = rendered({"wiring": "claims"})

    (scheduler,) = [
        one
        for one in objects
        if one["kind"] == "Deployment" and "scheduler" in one["metadata"]["name"]
    ]
    assert [one["name"] for one in scheduler["spec"]["template"]["spec"]["containers"]] == [
        "extender"
    ]
    rules = [rule for one in objects if "Role" in one["kind"] for rule in one.get("rules") or []]
    assert not {
        (resource, verb)
        for rule in rules
        for resource in rule["resources"]
        for verb in rule["verbs"]
        if resource.startswith(("pods/", "resourceclaims/"))
        or (resource == "pods" and verb == "create")
    } - {("pods/eviction", "create")}


@pytest.mark.parametrize("wiring", ["devicePlugin+claims", "claims+devicePlugin"])
def test_with_both_wirings_there_is_what_each_of_them_needs(wiring: str) -> None:
    def rules_in(found: Iterable[Json]) -> set[tuple[str, str, str]]:
        return {
            (one["metadata"]["name"], resource, verb)
            for one in found
            if one["kind"] in ("Role", "ClusterRole")
            for rule in one.get("rules") or []
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }

    def kinds_in(found: Iterable[Json]) -> set[tuple[str, str]]:
        return {(one["kind"], one["metadata"]["name"]) for one in found}

    both = rendered({"wiring": wiring})
    each = [rendered({"wiring": one}) for one in wiring.split("+")]

    assert rules_in(both) == rules_in(each[0]) | rules_in(each[1])
    assert kinds_in(both) == kinds_in(each[0]) | kinds_in(each[1])
    (config,) = (one for one in both if one["metadata"]["name"] == "fracgpu-config")
    assert config["data"]["wiring"] == wiring


def test_the_roles_restart_where_the_wiring_changes() -> None:
    """Each reads it when it starts."""

    def marks_in(wiring: str) -> dict[str, str]:
        return {
            one["metadata"]["name"]: one["spec"]["template"]["metadata"]["annotations"][
                "checksum/wiring"
            ]
            for one in rendered({"wiring": wiring})
            if one["kind"] in ("Deployment", "DaemonSet")
        }

    before, after = marks_in("devicePlugin"), marks_in("devicePlugin+claims")
    assert before.keys() == after.keys()
    assert not set(before.values()) & set(after.values())


@pytest.mark.parametrize(
    ("values", "version", "reason"),
    [
        ({}, "1.35.4", "wiring claims needs Kubernetes 1.36 or later"),
        ({"scheduler": {"mode": "cluster"}}, "1.36.2", "scheduler.mode is cluster with wiring"),
        ({"wiring": "both"}, "1.36.2", "wiring"),
        ({"mps": {"enabled": True}}, "1.36.2", "leave mps.enabled out"),
        ({"deviceplugin": {"readAsNode": True}}, "1.36.2", "leave deviceplugin.readAsNode out"),
    ],
)
def test_where_claims_cannot_work_the_chart_says_why(
    values: Json, version: str, reason: str
) -> None:
    done = template({"wiring": "claims", **values}, version=version)

    assert not done.ok
    assert reason in done.error


def test_every_object_has_the_standard_labels() -> None:
    for body in objects_in("gpu", everything(commonLabels={"cost-centre": "7"})):
        labels = body["metadata"]["labels"]
        assert labels["app.kubernetes.io/name"].startswith("fracgpu"), body["metadata"]
        assert labels["app.kubernetes.io/component"], body["metadata"]
        assert {key: labels[key] for key in labels if not key.endswith(("/name", "component"))} == {
            **labels_of(body),
            "app.kubernetes.io/instance": "sharing",
            "app.kubernetes.io/managed-by": "Helm",
            "app.kubernetes.io/part-of": "fracgpu",
            "app.kubernetes.io/version": "0.1.0",
            "cost-centre": "7",
            "helm.sh/chart": "fracgpu-0.1.0",
        }


def labels_of(body: Json) -> Json:
    """Return the further labels of a few kinds."""
    match body["kind"]:
        case "Namespace":
            return {"pod-security.kubernetes.io/enforce": "privileged"}
        case "ConfigMap" if "dashboard" in body["metadata"]["name"]:
            return {"grafana_dashboard": "1"}
        case _:
            return {}


def test_no_selector_differs_from_that_of_the_first_chart() -> None:
    """It can never be changed: an upgrade to another one would be refused."""
    found = {
        body["metadata"]["name"]: body["spec"]["selector"]
        for body in objects_in("fracgpu-system", everything(nameOverride="other"))
        if body["kind"] in ("Deployment", "DaemonSet")
    }

    roles = [
        "certs",
        "deviceplugin",
        "kube-scheduler-files",
        "mps",
        "rebalancer",
        "scheduler",
        "webhook",
    ]
    assert found == {
        f"other-{role}": {"matchLabels": {"app.kubernetes.io/name": f"fracgpu-{role}"}}
        for role in roles
    }


OTHER_NAMES: Final = {
    "fullnameOverride": "gpu-sharing",
    "webhook": {"serviceAccount": {"name": "hook"}},
    "deviceplugin": {"serviceAccount": {"name": "agent", "annotations": {"team": "ml"}}},
    "scheduler": {"mode": "prepare", "serviceAccount": {"create": False, "name": "placer"}},
}


def test_nothing_names_another_namespace_than_the_one_it_is_in() -> None:
    for body in objects_in("gpu", everything()):
        assert "fracgpu-system" not in json.dumps(body), body["metadata"]["name"]
        assert body["metadata"].get("namespace", "gpu") in ("gpu", "kube-system")


@pytest.mark.parametrize("values", [{}, OTHER_NAMES], ids=["default", "other"])
def test_policies_and_roles_name_the_accounts_that_the_pods_have(values: Json) -> None:
    objects = objects_in("gpu", everything(**values))

    accounts = {
        f"system:serviceaccount:gpu:{body['spec']['template']['spec']['serviceAccountName']}"
        for body in objects
        if body["kind"] in ("Deployment", "DaemonSet")
    }
    named = set(re.findall(r"system:serviceaccount:[\w-]+:[\w-]+", json.dumps(objects)))
    assert len(named) == 3  # agent, scheduler and rebalancer
    assert named <= accounts
    bound = {
        f"system:serviceaccount:{subject['namespace']}:{subject['name']}"
        for body in objects
        for subject in body.get("subjects", ())
        if "helm.sh/hook" not in body["metadata"].get("annotations", {})
    }
    assert bound == accounts


@pytest.mark.parametrize("values", [{}, OTHER_NAMES], ids=["default", "other"])
def test_whatever_an_object_names_is_there(values: Json) -> None:
    objects = objects_in("gpu", everything(**values))
    there = {(body["kind"], body["metadata"]["name"]) for body in objects}
    # The administrator's, and Kubernetes' own.
    there |= {("ServiceAccount", "placer"), ("Role", "extension-apiserver-authentication-reader")}
    there |= {("ClusterRole", f"system:{name}-scheduler") for name in ("kube", "volume")}

    assert set(references(objects)) - there == set()


def references(objects: tuple[Json, ...]) -> Iterator[tuple[str, str]]:
    """Yield the kind and name of what objects refer to."""
    for body in objects:
        if "roleRef" in body:
            yield body["roleRef"]["kind"], body["roleRef"]["name"]
            yield from (("ServiceAccount", subject["name"]) for subject in body["subjects"])
        for webhook in body.get("webhooks", ()):
            yield "Service", webhook["clientConfig"]["service"]["name"]
        if "issuerRef" in body.get("spec", {}):
            yield "Issuer", body["spec"]["issuerRef"]["name"]
    text = json.dumps(objects)
    found = {
        "ConfigMap": re.findall(r'"configMap": {"name": "([^"]+)"', text),
        "Service": re.findall(r"(?:https://|serverName: )([\w-]+)\.gpu\.svc", text),
    }
    for kind, called in found.items():
        assert called, kind
        yield from ((kind, name) for name in called)
    flags = (
        ("announce-service", "Service"),
        ("node-service", "Service"),
        ("webhook-service", "Service"),
        ("services", "Service"),
        ("restarted-daemonsets", "DaemonSet"),
    )
    for flag, kind in flags:
        (given,) = re.findall(rf'"--{flag}=([^"]+)"', text)
        yield from ((kind, name) for name in given.split(","))


@pytest.mark.parametrize("mode", ["own", "cert-manager"])
@pytest.mark.parametrize("name", ["fracgpu", "gpu-sharing"])
def test_the_secrets_that_roles_read_are_made_under_the_same_names(name: str, mode: str) -> None:
    objects = objects_in("gpu", {"fullnameOverride": name, "certificates": {"mode": mode}})
    by_name = by_key(objects)
    pod = by_name[f"Deployment gpu/{name}-certs"]["spec"]["template"]["spec"]
    settings = load(CertsSettings, pod["containers"][0]["args"][2:], {}, program="certs")

    made = set(desired_of(settings).leaves)
    if mode == "cert-manager":
        signed = {body["spec"]["secretName"] for body in objects if body["kind"] == "Certificate"}
        assert signed == {*made, f"{name}-cert-manager-ca"}
        assert set(adopted_of(settings).secrets) == made
    text = json.dumps(objects)
    named = set(re.findall(r'"--tls-secret=([\w-]+)"', text))
    mounted = set(re.findall(r'"secretName": "([\w-]+-client)"', text))
    assert named | mounted == made
    readable = {
        secret
        for body in objects
        if body["kind"] == "Role"
        for rule in body["rules"]
        if "secrets" in rule["resources"]
        for secret in rule.get("resourceNames", ())
    }
    assert readable - {settings.ca_secret} == made
    assert (settings.namespace, settings.webhook_service) == ("gpu", f"{name}-webhook")


def budgets(values: Json) -> set[str]:
    return {body["metadata"]["name"] for body in rendered(values)
            if body["kind"] == "PodDisruptionBudget"}  # fmt: skip


def test_one_replica_has_no_budget_that_would_keep_its_node_from_being_drained() -> None:
    assert budgets({}) == {"fracgpu-webhook", "fracgpu-scheduler"}
    assert budgets({"webhook": {"replicas": 1}}) == {"fracgpu-scheduler"}


def test_webhook_and_scheduler_are_in_the_hosts_network_where_pods_cannot_be_reached() -> None:
    values = {
        "webhook": {"hostNetwork": True, "port": 10443},
        "scheduler": {"hostNetwork": True, "port": 10404},
    }
    found = by_key(rendered(values))

    for name, flag, port in (("webhook", "10443", 10443), ("scheduler", "10404", 10404)):
        pod = found[f"Deployment fracgpu-system/fracgpu-{name}"]["spec"]["template"]["spec"]
        strategy = found[f"Deployment fracgpu-system/fracgpu-{name}"]["spec"]["strategy"]
        # With a replica on each node one more would wait for ever for a node with free ports.
        assert strategy["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
        assert (pod["hostNetwork"], pod["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
        assert f"--listen-port={flag}" in pod["containers"][0]["args"]
        assert pod["containers"][0]["ports"][0]["containerPort"] == port
        # The page on the host's loopback would be everybody's on that host.
        assert not [word for word in pod["containers"][0]["args"] if "page-port" in word]
    (leader,) = found["Service fracgpu-system/fracgpu-scheduler-leader"]["spec"]["ports"]
    assert leader["targetPort"] == 10404


def test_more_conditions_on_what_reaches_the_webhook_are_added_to_ours() -> None:
    values = {
        "webhook": {
            "namespaceSelector": {
                "matchLabels": {"team": "ml"},
                "matchExpressions": [{"key": "gpu", "operator": "Exists"}],
            },
            "objectSelector": {"matchLabels": {"gpu": "yes"}},
        }
    }
    plain, found = rendered(), rendered(values)

    for kind, count in (("MutatingWebhookConfiguration", 5), ("ValidatingWebhookConfiguration", 4)):
        (before,) = [body["webhooks"] for body in plain if body["kind"] == kind]
        (after,) = [body["webhooks"] for body in found if body["kind"] == kind]
        assert len(before) == len(after) == count
        for one, other in zip(before, after, strict=True):
            assert other["namespaceSelector"] == {
                "matchLabels": {"team": "ml"},
                "matchExpressions": [
                    *one["namespaceSelector"]["matchExpressions"],
                    {"key": "gpu", "operator": "Exists"},
                ],
            }
            assert other["objectSelector"] == {
                **one.get("objectSelector", {}),
                "matchLabels": {"gpu": "yes"},
            }


def test_nodes_are_cleaned_when_the_release_goes_and_at_no_other_time() -> None:
    hooks = [
        (body["kind"], body["metadata"]["annotations"]["helm.sh/hook"])
        for body in rendered()
        if "helm.sh/hook" in body["metadata"].get("annotations", {})
    ]

    assert hooks == [
        (kind, "pre-delete")
        for kind in ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Job")
    ]
    assert not [
        body
        for body in rendered({"nodeCleanup": {"enabled": False}})
        if "node-cleanup" in body["metadata"]["name"]
    ]


def notes(namespace: str = "fracgpu-system", values: Json | None = None) -> str:
    """Return what Helm prints after an installation."""
    words = ("install", "fracgpu", str(CHART), f"--namespace={namespace}", "--dry-run=client")
    done = helm(*words, values=values or {})
    assert done.ok, done.error
    return done.out.partition("NOTES:")[2]


@pytest.mark.parametrize(
    ("wiring", "more"), [("devicePlugin", set()), ("claims", {"resourceclaims"})]
)
def test_the_role_in_which_the_notes_list_cards_may_list_what_holds_them(
    wiring: str, more: set[str]
) -> None:
    ((role, container),) = re.findall(r"exec deployment/(\S+) -c (\S+) -- fracgpu cards", notes())
    objects = {
        it["kind"]: it
        for it in rendered({"wiring": wiring})
        if it["kind"] in ("Deployment", "ClusterRole") and it["metadata"]["name"] == role
    }

    pod = objects["Deployment"]["spec"]["template"]["spec"]
    assert container in [it["name"] for it in pod["containers"]]
    rules = [it for it in objects["ClusterRole"]["rules"] if "list" in it["verbs"]]
    may = {resource for rule in rules for resource in rule["resources"]}
    assert {"nodes", "pods", "moves"} | more <= may


def test_the_notes_say_what_helm_uninstall_leaves_and_what_to_run() -> None:
    said = notes()

    for command in documented("docs/install.md", "helm-uninstall"):
        assert f"     {command}\n" in said
    for left in ("certificates", "marks of the move", names.GPU_SLOT):
        assert left in said.partition("By itself it leaves")[2]
    assert "uninstall --nodes" not in said


def test_the_notes_say_what_to_run_first_where_something_has_to_be() -> None:
    values = {"scheduler": {"mode": "cluster"}, "nodeCleanup": {"enabled": False}}

    said = notes("gpu", values).partition("To uninstall:")[2]

    first, nodes, helms = (
        said.index(words)
        for words in ("out of the kube-scheduler", "uninstall --nodes --yes", "helm uninstall")
    )
    assert first < nodes < helms
    assert "Delete the namespace if it was for FracGPU alone" in said
    assert "/etc/fracgpu/kube-scheduler" in said
