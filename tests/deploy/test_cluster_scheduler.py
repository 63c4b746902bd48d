"""The overlay for the cluster's own kube-scheduler is complete, and its steps work."""

from typing import Any

from certs.service import client_secret, desired_node_files_of, desired_of
from certs.settings import CertsSettings
from process.settings import load
from rebalancer.settings import RebalancerSettings
from scheduler.settings import SchedulerSettings
from simulator.apiserver.apimachinery.patches import json_patch
from tests.deploy.test_certificates import ROOT, built, named
from tests.support.yaml_files import read_yaml
from webhook.settings import WebhookSettings

Json = dict[str, Any]
FILES = ROOT / "deploy" / "cluster-scheduler" / "files"
PREPARE, SWITCH = "overlays/cluster-scheduler/prepare", "overlays/cluster-scheduler"
AGENT = "fracgpu-kube-scheduler-files"
NODE = "/etc/fracgpu/kube-scheduler"


def config() -> Json:
    found: Json = read_yaml((FILES / "config.yaml").read_text())
    return found


def agent() -> tuple[CertsSettings, Json]:
    pod = named(PREPARE, "DaemonSet", AGENT)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    run, role, *flags = container["args"]
    assert (run, role) == ("run", "certs")
    return load(CertsSettings, flags, {}, program="certs"), pod


def args_of(folder: str, name: str) -> list[str]:
    pod = named(folder, "Deployment", name)["spec"]["template"]["spec"]
    words: list[str] = pod["containers"][0]["args"]
    return words


def test_preparing_changes_nothing_but_whom_the_certificates_role_restarts() -> None:
    base = {
        (manifest["kind"], manifest["metadata"]["name"]): manifest for manifest in built("deploy")
    }
    prepared = {
        (manifest["kind"], manifest["metadata"]["name"]): manifest for manifest in built(PREPARE)
    }

    assert base.keys() <= prepared.keys()
    assert {kind for kind, _ in prepared.keys() - base.keys()} == {
        "ConfigMap",
        "DaemonSet",
        "NetworkPolicy",
        "Role",
        "RoleBinding",
        "ServiceAccount",
    }
    assert {name for name, body in base.items() if prepared[name] != body} == {
        ("Deployment", "fracgpu-certs"),
        ("Role", "fracgpu-certs"),
    }
    # So that the way back can select them.
    assert {
        prepared[name]["metadata"]["labels"]["app.kubernetes.io/component"]
        for name in prepared.keys() - base.keys()
    } == {"cluster-scheduler"}


def test_the_certificates_role_restarts_what_it_may() -> None:
    flags = args_of(PREPARE, "fracgpu-certs")[2:]
    wanted = desired_of(load(CertsSettings, flags, {}, program="certs"))
    rules = named(PREPARE, "Role", "fracgpu-certs")["rules"]
    (rule,) = [rule for rule in rules if rule["resources"] == ["daemonsets"]]

    assert (list(wanted.readers), list(wanted.node_readers)) == (["fracgpu-scheduler"], [AGENT])
    assert rule["resourceNames"] == [AGENT]
    assert set(rule["verbs"]) == {"get", "patch"}


def test_the_agent_may_read_what_it_writes_and_no_more() -> None:
    settings, pod = agent()
    wanted = desired_node_files_of(settings)
    secrets, services = named(PREPARE, "Role", AGENT)["rules"]

    assert settings.mode == "node"
    assert secrets["resourceNames"] == [wanted.secret] == [client_secret("fracgpu-scheduler")]
    assert set(secrets["verbs"]) == {"get", "list", "watch"}
    assert (services["resourceNames"], services["verbs"]) == ([wanted.service], ["get"])
    (container,) = pod["containers"]
    assert pod["hostPID"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    # The same path here and in kube-scheduler: the configuration names files by it.
    assert str(wanted.folder) == mounts["folder"]["mountPath"] == NODE
    assert volumes["folder"]["hostPath"]["path"] == NODE
    assert str(wanted.configuration.parent) == mounts["configuration"]["mountPath"]
    maps = [
        config_map
        for config_map in built(PREPARE)
        if config_map["metadata"]["name"].startswith("fracgpu-kube-sch")
    ]
    (given,) = [config_map for config_map in maps if config_map["kind"] == "ConfigMap"]
    assert volumes["configuration"]["configMap"]["name"] == given["metadata"]["name"]
    assert list(given["data"]) == [wanted.configuration.name]


def test_one_node_after_the_other_is_restarted() -> None:
    spec = named(PREPARE, "DaemonSet", AGENT)["spec"]

    assert spec["updateStrategy"]["rollingUpdate"]["maxUnavailable"] == 1
    assert spec["template"]["spec"]["nodeSelector"] == {"node-role.kubernetes.io/control-plane": ""}


def test_the_clusters_own_kube_scheduler_gets_the_same_extender() -> None:
    ours = read_yaml((ROOT / "deploy" / "scheduler-profile.yaml").read_text())
    theirs = config()
    (mine,), (its,) = ours["extenders"], theirs["extenders"]

    files = {"caFile": "ca.crt", "certFile": "tls.crt", "keyFile": "tls.key"}
    for field, name in files.items():
        assert its["tlsConfig"].pop(field) == f"{NODE}/current/{name}"
        del mine["tlsConfig"][field]
    assert its == mine
    by_name = {profile["schedulerName"]: profile for profile in theirs["profiles"]}
    assert by_name["fracgpu-scheduler"] == ours["profiles"][0]
    assert {profile["percentageOfNodesToScore"] for profile in theirs["profiles"]} == {100}


def test_with_a_configuration_file_kube_scheduler_still_finds_the_api_server_and_elects() -> None:
    assert config()["clientConnection"]["kubeconfig"] == "/etc/kubernetes/scheduler.conf"
    assert config()["leaderElection"]["leaderElect"] is True


def test_the_static_pod_is_given_the_configuration_and_its_folder() -> None:
    pod: Json = {
        "spec": {
            "containers": [{"command": ["kube-scheduler"], "volumeMounts": [{"name": "k"}]}],
            "volumes": [{"name": "k"}],
        }
    }

    patched = json_patch(pod, read_yaml((FILES / "kube-scheduler+json.yaml").read_text()))

    (container,) = patched["spec"]["containers"]
    assert container["command"][1:] == [f"--config={NODE}/current/config.yaml"]
    mount, volume = container["volumeMounts"][-1], patched["spec"]["volumes"][-1]
    assert (mount["mountPath"], mount["readOnly"]) == (NODE, True)
    assert (volume["name"], volume["hostPath"]["path"]) == (mount["name"], NODE)


def test_both_kube_schedulers_give_a_lost_leader_up_after_seconds() -> None:
    ours = {
        container["name"]: container
        for container in named("deploy", "Deployment", "fracgpu-scheduler")["spec"]["template"][
            "spec"
        ]["containers"]
    }["kube-scheduler"]
    patch = read_yaml((FILES / "kube-scheduler1+strategic.yaml").read_text())
    (the_clusters,) = patch["spec"]["containers"]

    assert the_clusters["name"] == "kube-scheduler"  # strategic patches merge by name
    for container in (ours, the_clusters):
        health = {entry["name"]: entry["value"] for entry in container["env"]}
        assert health == {
            "HTTP2_READ_IDLE_TIMEOUT_SECONDS": "3",
            "HTTP2_PING_TIMEOUT_SECONDS": "3",
        }


def test_switching_takes_our_kube_scheduler_its_files_and_its_rights_away() -> None:
    pod = named(SWITCH, "Deployment", "fracgpu-scheduler")["spec"]["template"]["spec"]
    before = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in built(PREPARE)}
    after = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in built(SWITCH)}

    assert [container["name"] for container in pod["containers"]] == ["extender"]
    assert {mount["name"] for mount in pod["containers"][0].get("volumeMounts", ())} == {
        volume["name"] for volume in pod.get("volumes", ())
    }
    assert before - after == {
        ("ClusterRoleBinding", "fracgpu-scheduler-as-kube-scheduler"),
        ("ClusterRoleBinding", "fracgpu-scheduler-as-volume-scheduler"),
        ("RoleBinding", "fracgpu-scheduler-authentication-reader"),
    }
    assert after <= before


def test_switched_pods_keep_the_clusters_scheduler_and_can_be_moved() -> None:
    webhook = load(WebhookSettings, args_of(SWITCH, "fracgpu-webhook")[2:], {}, program="webhook")
    rebalancer = load(
        RebalancerSettings,
        args_of(SWITCH, "fracgpu-rebalancer")[2:],
        {"FRACGPU_REBALANCER_PROMETHEUS_URL": "http://p"},
        program="rebalancer",
    )

    assert webhook.scheduler_name == rebalancer.scheduler_name == "default-scheduler"


def test_filter_names_the_best_node_to_either_kube_scheduler() -> None:
    def narrow(folder: str) -> bool:
        (extender, *_) = named(folder, "Deployment", "fracgpu-scheduler")["spec"]["template"][
            "spec"
        ]["containers"]
        said = {one["name"]: one["value"] for one in extender["env"] if "value" in one}
        flags = [flag for flag in extender["args"][2:] if "announce" not in flag]
        return load(SchedulerSettings, flags, said, program="scheduler").narrow_filter

    assert narrow("deploy")
    assert narrow(SWITCH)


def test_one_image_runs_everything_of_ours() -> None:
    images = {
        container["image"]
        for body in built(SWITCH)
        if body["kind"] in ("Deployment", "DaemonSet")
        for container in body["spec"]["template"]["spec"]["containers"]
    }

    assert len(images) == 1
