"""The requests that are sent to the simulator and to a real kube-apiserver, in turn."""

from dataclasses import dataclass
from typing import Any, Final

from simulator.objects import Json

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
NS = "/api/v1/namespaces/NS"
PODS = f"{NS}/pods"
CONFIGS = f"{NS}/configmaps"
PDBS = "/apis/policy/v1/namespaces/NS/poddisruptionbudgets"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/NS/leases"
DEPLOYMENTS = "/apis/apps/v1/namespaces/NS/deployments"
NODES = "/api/v1/nodes"
DEVICE_CLAIMS = "/apis/resource.k8s.io/v1/namespaces/NS/resourceclaims"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
CLASSES = "/apis/resource.k8s.io/v1/deviceclasses"
CLUSTER_ROLES = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
READ_PODS = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}
PARTS_OF_METADATA = ("labels", "annotations", "ownerReferences", "finalizers")


@dataclass(frozen=True)
class Ask:
    """One request. ``words`` False compares the code and the reason alone."""

    method: str
    path: str
    body: Any = None
    content_type: str = "application/json"
    words: bool = True


def a_pod(name: str = "", *, meta: Json | None = None, **spec: Any) -> Json:
    container = {"name": "main", "image": "x:1"}
    return {
        "metadata": {**({"name": name} if name else {}), **(meta or {})},
        "spec": {"schedulerName": "nobody", "containers": [container], **spec},
    }


def demanding(name: str, **amounts: Any) -> Json:
    container = {"name": "main", "image": "x:1", "resources": amounts}
    return a_pod(name, containers=[container])


def mem(amount: Any) -> Json:
    return {"fracgpu.io/gpu-mem": amount}


def labelled(labels: Json, selector: Json, **more: Any) -> Json:
    template = {"metadata": {"labels": labels}, "spec": a_pod()["spec"]}
    spec = {"replicas": 0, "selector": {"matchLabels": selector}, "template": template, **more}
    return {"metadata": {"name": "d"}, "spec": spec}


def bound(name: str, node: str = "n1", **meta: Any) -> Json:
    return {"metadata": {"name": name, **meta}, "target": {"kind": "Node", "name": node}}


ADD = {"op": "add", "value": "1"}
OTHER_IMAGE = {"name": "main", "image": "y:1"}
READY = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
COUNTED = {"observedGeneration": 1, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1}

WRITES_AND_READS = [
    Ask("POST", PODS, a_pod("p")),
    Ask("POST", PODS, a_pod("p")),
    Ask("GET", f"{PODS}/p"),
    Ask("GET", f"{PODS}/none"),
    Ask("POST", PODS, a_pod(meta={"generateName": "gen-"})),
    Ask("POST", PODS, a_pod()),
    Ask("POST", f"{PODS}?dryRun=All", a_pod("dry")),
    Ask("GET", f"{PODS}/dry"),
    Ask("POST", PODS, a_pod("q", meta={"namespace": "other"})),
    Ask("POST", "/api/v1/namespaces/nowhere/pods", a_pod("q")),
    Ask("PUT", f"{PODS}/p", a_pod("other")),
    Ask("PUT", f"{PODS}/p", a_pod("p", meta={"resourceVersion": "1"})),
    Ask("PUT", f"{PODS}/p", a_pod("p", meta={"uid": "other"})),
    Ask("PUT", f"{PODS}/p", a_pod("p", nodeName="n9"), words=False),
    Ask("DELETE", f"{PODS}/p", {"preconditions": {"uid": "other"}}),
    Ask("DELETE", f"{PODS}/p"),
    Ask("DELETE", f"{PODS}/p"),
    Ask("POST", CONFIGS, {"metadata": {"name": "c"}, "data": {"a": "1"}}),
    Ask("PUT", f"{CONFIGS}/c", {"metadata": {"name": "c"}, "data": {"a": "2"}}),
    Ask("DELETE", f"{CONFIGS}/c"),
    Ask("POST", CONFIGS, {"metadata": {"name": "c"}, "data": {"a": 1}}),
    Ask("POST", CONFIGS, {"metadata": {"name": "f", "finalizers": ["example.org/f"]}}),
    Ask("DELETE", f"{CONFIGS}/f"),
    Ask("PATCH", f"{CONFIGS}/f", {"metadata": {"finalizers": None}}, MERGE),
    Ask("GET", f"{CONFIGS}/f"),
    Ask("POST", LEASES, {"metadata": {"name": "l"}, "spec": {"holderIdentity": "x"}}),
    Ask("PUT", f"{LEASES}/l", {"metadata": {"name": "l"}, "spec": {}}),
    Ask("PUT", f"{LEASES}/new", {"metadata": {"name": "new"}, "spec": {}}),
    Ask("DELETE", "/api/v1/namespaces/default"),
]
ROUTES = [
    Ask("GET", "/api/v1/things"),
    Ask("GET", "/apis/example.org/v1/things"),
    Ask("GET", "/nothing"),
    *(Ask("GET", path) for path in ("/healthz", "/livez", "/readyz")),
    Ask("GET", NS, words=False),
    Ask("PATCH", NS, {"metadata": {"labels": {"a": "b"}}}, MERGE),
    Ask("PATCH", NS, {"metadata": {"labels": {"a": None}}}, MERGE),
    Ask("GET", f"{NS}/nodes"),
    Ask("GET", "/api/v1/pods/p"),
    Ask("GET", f"{PODS}/p/nothing"),
    Ask("GET", f"{PODS}/p/status/x"),
    Ask("DELETE", f"{PODS}/p/status"),
    Ask("GET", f"{PODS}/p/binding"),
    Ask("POST", f"{PODS}/p", {}),
    Ask("PUT", PODS, {}),
    Ask("POST", "/api/v1/pods", a_pod("q")),
    Ask("GET", f"{PODS}?fieldSelector=spec.x%3D1"),
    Ask("GET", f"{PODS}?labelSelector=a%20b%20c", words=False),
    Ask("GET", f"{PODS}?limit=x", words=False),
    Ask("GET", f"{PODS}?continue=abc", words=False),
    Ask("POST", PODS, b"{not json", words=False),
    Ask("POST", PODS, b"[]", words=False),
    Ask("POST", PODS, a_pod("q"), "text/plain", words=False),
    Ask("POST", PODS, {**a_pod("q"), "kind": "Node"}, words=False),
    Ask("POST", PODS, {**a_pod("q"), "apiVersion": "v2"}, words=False),
]
VALIDATION = [
    Ask("POST", PODS, demanding("ok", limits={**mem(8000), "cpu": 0.5, "memory": "1024Mi"})),
    Ask("POST", PODS, demanding("q", limits=mem("1.5"))),
    Ask("POST", PODS, demanding("q", limits=mem("abc"))),
    Ask("POST", PODS, demanding("q", limits=mem("-1"))),
    Ask("POST", PODS, demanding("q", requests=mem("4"))),
    Ask("POST", PODS, demanding("q", limits=mem("4"), requests=mem("3"))),
    Ask("POST", PODS, demanding("q", limits={"cpu": "1"}, requests={"cpu": "2"})),
    Ask("POST", PODS, demanding("q", limits={"gpumem": "1"}), words=False),
    Ask("POST", PODS, demanding("q", limits={"kubernetes.io/batch": "1"}), words=False),
    Ask("POST", PODS, {"metadata": {"name": "q"}}),
    Ask("POST", PODS, a_pod("q", containers=[{}])),
    Ask("POST", PODS, a_pod("q", containers=[{"name": "a", "image": "x"}] * 2)),
    Ask("POST", PODS, a_pod("q", containers=[{"name": "A_b", "image": "x"}])),
    Ask("POST", PODS, a_pod("q", initContainers=[{"name": "main", "image": "x"}])),
    Ask("POST", PODS, a_pod("Bad_Name")),
    Ask("POST", PODS, a_pod("a" * 254), words=False),
    Ask("POST", "/api/v1/namespaces", {"metadata": {"name": "a.b"}}, words=False),
    Ask("POST", PODS, a_pod("q", meta={"annotations": {"a": 0.5}})),
    Ask("POST", PODS, a_pod("q", meta={"annotations": {"bad key": "x"}})),
    Ask("POST", PODS, a_pod("q", meta={"labels": {"a": "bad value"}})),
    Ask("POST", DEPLOYMENTS, labelled({"app": "a"}, {"app": "b"})),
    Ask("POST", DEPLOYMENTS, labelled({"app": "a"}, {})),
    Ask("POST", DEPLOYMENTS, labelled({"app": "a"}, {"app": "a"})),
    Ask("POST", CLUSTER_ROLES, {"metadata": {"name": "system:side-by-side"}, "rules": [READ_PODS]}),
    Ask("POST", CLUSTER_ROLES, {"metadata": {"name": "a/b"}}, words=False),
    Ask("DELETE", f"{CLUSTER_ROLES}/system:side-by-side"),
    Ask("POST", CONFIGS, {"metadata": {"name": "c", "labels": {"bad key": "x"}}}),
    Ask("POST", CONFIGS, {"metadata": {"name": "c", "annotations": {"a": "x" * 300_000}}}),
    *(
        Ask("POST", CONFIGS, body, words=False)
        for body in (
            {"metadata": []},
            *({"metadata": {"name": "c", part: "text"}} for part in PARTS_OF_METADATA),
            {"metadata": {"name": "c", "labels": {"a": True}}},
            {"metadata": {"name": "c"}, "data": {"a": [1]}},
            {"metadata": {"name": "c"}, "data": {"a": {}}},
        )
    ),
    Ask("POST", PODS, b"", words=False),
    Ask("POST", PODS, {"metadata": {"name": "q"}, "spec": []}, words=False),
    Ask("POST", PODS, demanding("q", limits={"cpu": "much"}), words=False),
]
IMAGES = (
    "app",
    "app:latest",
    "app:1",
    "host:5000/app",
    "host:5000/app:1",
    f"app@sha256:{'0' * 64}",
)
AMOUNTS: tuple[Json, ...] = (
    {},
    {"limits": mem("1")},
    {"requests": {"cpu": "1"}},
    {"limits": {"cpu": "1"}},
    {"limits": {"cpu": "1", "memory": "1Gi"}},
    {"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "1"}},
)
WEBHOOK = {
    "name": "w.example.org",
    "clientConfig": {"service": {"name": "s", "namespace": "default"}},
    "rules": [
        {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["secrets"], "operations": ["*"]}
    ],
    "admissionReviewVersions": ["v1"],
    "sideEffects": "None",
    "namespaceSelector": {"matchLabels": {"nobody": "has"}},
}
DEFAULTS = [
    Ask(
        "POST",
        PODS,
        a_pod("p", containers=[{"name": f"c{n}", "image": one} for n, one in enumerate(IMAGES)]),
    ),
    Ask("POST", PODS, {**a_pod("other"), "spec": {"containers": a_pod()["spec"]["containers"]}}),
    Ask("POST", PODS, a_pod("empty", meta={"labels": {}, "annotations": {}})),
    *(Ask("POST", PODS, demanding(f"q{n}", **amounts)) for n, amounts in enumerate(AMOUNTS)),
    Ask(
        "PATCH",
        f"{PODS}/p/status",
        {"status": {"conditions": [{"type": "X", "status": "True"}]}},
        STRATEGIC,
    ),
    Ask("POST", DEPLOYMENTS, labelled({"app": "a"}, {"app": "a"}, replicas=None)),
    Ask("DELETE", f"{DEPLOYMENTS}/d"),
    Ask("POST", DEPLOYMENTS, labelled({"app": "a"}, {"app": "a"}, revisionHistoryLimit=1)),
    Ask("POST", NODES, {"metadata": {"name": "side-by-side"}, "status": {"capacity": mem(8000)}}),
    Ask("PATCH", f"{NODES}/side-by-side/status", {"status": {"capacity": {"a/b": "2"}}}, MERGE),
    Ask("DELETE", f"{NODES}/side-by-side"),
    Ask(
        "POST",
        f"{NS}/events",
        {"metadata": {"name": "e"}, "involvedObject": {"namespace": "side-by-side"}, "reason": "r"},
    ),
    Ask("POST", WEBHOOKS, {"metadata": {"name": "side-by-side"}, "webhooks": [WEBHOOK]}),
    Ask("DELETE", f"{WEBHOOKS}/side-by-side"),
]


def containers(*parts: Json) -> Json:
    return {"spec": {"template": {"spec": {"containers": [*parts]}}}}


A, B = ({"name": name, "image": "x:1"} for name in "ab")
PORT = {"containerPort": 80, "protocol": "TCP"}
SINCE = "2026-01-01T00:00:00Z"
TIMES = {"lastUpdateTime": SINCE, "lastTransitionTime": SINCE}
OWNER = {"apiVersion": "v1", "kind": "ConfigMap", "name": "c"}
TWO_CONTAINERS = labelled({"app": "a"}, {"app": "a"})
TWO_CONTAINERS["spec"]["template"]["spec"]["containers"] = [A, B]
STRATEGICS = [
    Ask("POST", DEPLOYMENTS, TWO_CONTAINERS),
    *(
        Ask("PATCH", f"{DEPLOYMENTS}/d", patch, STRATEGIC)
        for patch in (
            containers({"name": "b", "image": "x:2"}, {"name": "c", "image": "x:1"}),
            containers({"name": "a", "$patch": "delete"}),
            {
                "spec": {
                    "template": {
                        "spec": {
                            "$setElementOrder/containers": [{"name": "c"}, {"name": "a"}],
                            "containers": [
                                {**A, "args": ["a"], "ports": [PORT, {**PORT, "containerPort": 81}]}
                            ],
                            "tolerations": [{"key": "a", "operator": "Exists"}],
                        }
                    }
                }
            },
            {
                "metadata": {"finalizers": ["x.org/x", "x.org/y"]},
                **containers({"name": "a", "args": ["b"], "ports": [{**PORT, "name": "web"}]}),
            },
            {"metadata": {"finalizers": ["x.org/y", "x.org/z"]}},
            {"metadata": {"$deleteFromPrimitiveList/finalizers": ["x.org/x"], "finalizers": []}},
            {"metadata": {"ownerReferences": [{**OWNER, "uid": "1"}, {**OWNER, "uid": "2"}]}},
            {"metadata": {"ownerReferences": [{"$patch": "delete", "uid": "1"}]}},
            {"spec": {"strategy": {"$patch": "replace", "type": "Recreate"}}},
            {"spec": {"strategy": {"$patch": "delete"}}},
            {"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}},
            {"spec": {"template": {"spec": {"tolerations": None}}}},
            containers({"$patch": "replace"}, {"name": "z", "image": "x:1"}),
        )
    ),
    *(
        Ask(
            "PATCH",
            f"{DEPLOYMENTS}/d/status",
            {
                "metadata": {"labels": {"via": "status"}},
                "status": {"conditions": [{"type": kind, "status": "True", **TIMES}]},
            },
            STRATEGIC,
        )
        for kind in ("Available", "Progressing")
    ),
    Ask("PATCH", f"{DEPLOYMENTS}/d", [1], STRATEGIC, words=False),
    Ask("PATCH", f"{DEPLOYMENTS}/d", {"metadata": {"finalizers": None}}, MERGE),
]
CHANGES: tuple[Json, ...] = (
    {"activeDeadlineSeconds": 5},
    {"tolerations": []},
    {"containers": [OTHER_IMAGE, {"name": "b", "image": "x:1"}]},
)
PATCHES = [
    Ask("POST", PODS, a_pod("p")),
    Ask("PATCH", f"{PODS}/p", {"metadata": {"labels": {"a": None, "b": "c"}}}, MERGE),
    Ask("PATCH", f"{PODS}/p", {"metadata": {"resourceVersion": "1"}}, MERGE),
    Ask("PATCH", f"{PODS}/p", {"metadata": {"name": "other"}}, MERGE),
    Ask("PATCH", f"{PODS}/p", {"metadata": {"uid": "other"}}, MERGE, words=False),
    Ask("PATCH", f"{PODS}/p", {"spec": {"nodeName": "n"}}, MERGE, words=False),
    Ask("PATCH", f"{PODS}/p", [1], MERGE, words=False),
    Ask("PATCH", f"{PODS}/p", b"{", MERGE, words=False),
    Ask("PATCH", f"{PODS}/p", {}, "application/json"),
    Ask("PATCH", f"{PODS}/none", {"metadata": {}}, MERGE),
    Ask("PATCH", f"{PODS}/p", [{"op": "test", "path": "/kind", "value": "x"}], JSON_PATCH),
    Ask("PATCH", f"{PODS}/p", [{**ADD, "path": "/gone/x"}], JSON_PATCH),
    Ask("PATCH", f"{PODS}/p", [{"op": "frob", "path": "/kind"}], JSON_PATCH),
    Ask("PATCH", f"{PODS}/p", {}, JSON_PATCH, words=False),
    Ask(
        "PATCH",
        f"{PODS}/p",
        [{"op": "add", "path": "/metadata/labels/example.org~1z", "value": "1"}],
        JSON_PATCH,
    ),
    Ask(
        "PATCH",
        f"{PODS}/p",
        {"spec": {"containers": [{"name": "main", "image": "y:1"}]}},
        STRATEGIC,
    ),
    Ask("PATCH", f"{PODS}/p/status", {**READY, "metadata": {"labels": {"via": "status"}}}, MERGE),
    Ask("PATCH", f"{PODS}/p", {"status": {"phase": "Failed"}}, MERGE),
    *(Ask("PATCH", f"{PODS}/p", {"spec": spec}, MERGE, words=False) for spec in CHANGES),
    Ask(
        "PATCH",
        f"{PODS}/p",
        {"spec": {"tolerations": [{"key": "x", "operator": "Exists"}]}},
        STRATEGIC,
        words=False,
    ),
    Ask("POST", PODS, demanding("d", limits=mem("1"))),
    Ask(
        "PATCH",
        f"{PODS}/d",
        {"spec": {"containers": [{"name": "main", "image": "y:1"}]}},
        STRATEGIC,
    ),
    Ask("POST", PODS, a_pod("g", schedulingGates=[{"name": "x.org/a"}, {"name": "x.org/b"}])),
    Ask("PATCH", f"{PODS}/g", {"spec": {"schedulingGates": [{"name": "x.org/b"}]}}, MERGE),
    Ask(
        "PATCH",
        f"{PODS}/g",
        {"spec": {"schedulingGates": [{"name": "x.org/b"}, {"name": "x.org/c"}]}},
        MERGE,
        words=False,
    ),
]
BINDING_AND_EVICTION = [
    Ask("POST", PODS, a_pod("p", meta={"labels": {"app": "a"}})),
    Ask("POST", f"{PODS}/none/binding", bound("none")),
    Ask("POST", f"{PODS}/p/binding", bound("other")),
    Ask("POST", f"{PODS}/p/binding", {"metadata": {"name": "p"}, "target": {}}),
    Ask("POST", f"{PODS}/p/binding", bound("p", uid="other")),
    Ask("POST", f"{PODS}/p/binding", bound("p", resourceVersion="1"), words=False),
    Ask("POST", f"{PODS}/p/binding", bound("p", annotations={"example.org/a": "b"})),
    Ask("POST", f"{PODS}/p/binding", bound("p", "n2")),
    Ask("GET", f"{PODS}/p"),
    Ask("PATCH", f"{PODS}/p/status", READY, STRATEGIC),
    Ask("POST", f"{PODS}/none/eviction", {"metadata": {"name": "none"}}),
    Ask("POST", f"{PODS}/p/eviction", {"metadata": {"name": "other"}}),
    Ask(
        "POST",
        f"{PODS}/p/eviction",
        {"metadata": {"name": "p"}, "deleteOptions": {"preconditions": {"uid": "other"}}},
    ),
    Ask(
        "POST",
        PDBS,
        {
            "metadata": {"name": "b"},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}},
        },
    ),
    Ask("POST", f"{PODS}/p/eviction", {"metadata": {"name": "p"}}),
    Ask("PATCH", f"{PDBS}/b/status", {"status": {**COUNTED, "disruptionsAllowed": 0}}, MERGE),
    Ask("POST", f"{PODS}/p/eviction", {"metadata": {"name": "p"}}),
    Ask("PATCH", f"{PDBS}/b/status", {"status": {"desiredHealthy": 0}}, MERGE),
    Ask("POST", f"{PODS}/p/eviction", {"metadata": {"name": "p"}}),
    Ask("PATCH", f"{PDBS}/b/status", {"status": {"disruptionsAllowed": 1}}, MERGE),
    Ask("POST", f"{PODS}/p/eviction?dryRun=All", {"metadata": {"name": "p"}}),
    Ask("POST", PDBS, {"metadata": {"name": "c"}, "spec": {"minAvailable": 1, "selector": {}}}),
    Ask("POST", f"{PODS}/p/eviction", {"metadata": {"name": "p"}}),
    Ask("DELETE", f"{PDBS}/c"),
    Ask("POST", f"{PODS}/p/eviction", {"metadata": {"name": "p"}}),
    Ask("GET", f"{PODS}/p"),
    Ask("DELETE", f"{PODS}/p", {"gracePeriodSeconds": 0}),
    Ask("POST", PODS, a_pod("g", schedulingGates=[{"name": "example.org/g"}])),
    Ask("POST", f"{PODS}/g/binding", bound("g")),
]
CLAIMS = {
    "name": "p",
    "uid": "00000000-0000-0000-0000-000000000000",
    "generation": 7,
    "creationTimestamp": "2000-01-01T00:00:00Z",
    "deletionTimestamp": "2000-01-01T00:00:00Z",
}
SECRETS = f"{NS}/secrets"
REGISTRY = [
    Ask("POST", PODS, {**a_pod("p", meta=CLAIMS), "status": {"phase": "Running"}}),
    Ask("PATCH", f"{PODS}/p", {}, MERGE),
    Ask("PATCH", f"{PODS}/p/status", {"status": {"phase": "Running"}, "spec": {}}, MERGE),
    Ask("GET", f"{PODS}/p"),
    Ask("DELETE", f"{PODS}/p"),
    Ask("POST", PDBS, {"metadata": {"name": "b"}, "spec": {"minAvailable": 1}}),
    Ask("PUT", f"{PDBS}/b", {"metadata": {"name": "b"}, "spec": {}}),
    Ask("DELETE", f"{PDBS}/b"),
    Ask("POST", SECRETS, {"metadata": {"name": "guarded"}}),
    Ask("DELETE", f"{SECRETS}/guarded", {"preconditions": {"resourceVersion": "1"}}, words=False),
    Ask("DELETE", f"{SECRETS}/guarded", {"preconditions": {"uid": "other"}}, words=False),
    Ask("DELETE", f"{SECRETS}/guarded"),
    Ask("POST", DEPLOYMENTS, labelled({"app": "a"}, {"app": "a"})),
    Ask("PATCH", f"{DEPLOYMENTS}/d", {"metadata": {"labels": {"x": "y"}}}, MERGE),
    Ask("PATCH", f"{DEPLOYMENTS}/d", {"spec": {"replicas": 3}}, MERGE),
    Ask("POST", PODS, a_pod("graceful", nodeName="n1", terminationGracePeriodSeconds=20)),
    Ask("DELETE", f"{PODS}/graceful?gracePeriodSeconds=0&dryRun=All"),
    Ask("GET", f"{PODS}/graceful"),
    Ask("DELETE", f"{PODS}/graceful?gracePeriodSeconds=15"),
    Ask("DELETE", f"{PODS}/graceful", {"gracePeriodSeconds": 0}),
    Ask("POST", PODS, a_pod("graceful", nodeName="n1", terminationGracePeriodSeconds=20)),
    Ask("DELETE", f"{PODS}/graceful"),
    Ask("DELETE", f"{PODS}/graceful", {"gracePeriodSeconds": 60}),
    Ask("DELETE", f"{PODS}/graceful", {"gracePeriodSeconds": 5}),
    Ask("DELETE", f"{PODS}/graceful", {"gracePeriodSeconds": -5}),
    Ask("DELETE", f"{PODS}/graceful", {"gracePeriodSeconds": 0}),
    Ask("GET", f"{PODS}/graceful"),
    *(
        ask
        for phase in ("Succeeded", "Failed")
        for ask in (
            Ask("POST", PODS, a_pod("done", nodeName="n1")),
            Ask("PATCH", f"{PODS}/done/status", {"status": {"phase": phase}}, MERGE),
            Ask("DELETE", f"{PODS}/done"),
            Ask("GET", f"{PODS}/done"),
        )
    ),
]


def counted(**status: Any) -> Ask:
    return Ask("PATCH", f"{PDBS}/b/status", {"status": {**COUNTED, **status}}, MERGE)


def in_phase(phase: str, ready: str) -> Ask:
    conditions = [{"type": "Ready", "status": ready}]
    status = {"status": {"phase": phase, "conditions": conditions}}
    return Ask("PATCH", f"{PODS}/p/status", status, MERGE)


EVICTED = Ask("POST", f"{PODS}/p/eviction", {"metadata": {"name": "p"}})
GONE = Ask("DELETE", f"{PODS}/p", {"gracePeriodSeconds": 0})
AGAIN = (GONE, Ask("POST", PODS, a_pod("p", meta={"labels": {"app": "a"}}, nodeName="n1")))
UNHEALTHY = counted(disruptionsAllowed=0, currentHealthy=0)
SUBRESOURCES = [
    Ask("POST", PODS, a_pod("p", meta={"labels": {"app": "a"}})),
    Ask("POST", f"{PODS}/p/binding", bound("p", namespace="other")),
    Ask("POST", f"{PODS}/p/binding?dryRun=All", bound("p")),
    Ask("GET", f"{PODS}/p"),
    *AGAIN,
    in_phase("Running", "True"),
    Ask("POST", f"{PODS}/p/eviction", {**EVICTED.body, "deleteOptions": {"gracePeriodSeconds": 7}}),
    Ask("GET", f"{PODS}/p"),
    Ask(
        "POST",
        PDBS,
        {
            "metadata": {"name": "b"},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}},
        },
    ),
    *(
        ask
        for phase in ("Pending", "Succeeded", "Failed")
        for ask in (*AGAIN, in_phase(phase, "False"), UNHEALTHY, EVICTED)
    ),
    *(*AGAIN, in_phase("Running", "False"), counted(disruptionsAllowed=0), EVICTED),
    *(*AGAIN, in_phase("Running", "False")),
    *(UNHEALTHY, EVICTED),
    Ask("GET", f"{PDBS}/b"),
    Ask("PATCH", f"{PDBS}/b", {"spec": {"unhealthyPodEvictionPolicy": "AlwaysAllow"}}, MERGE),
    *(counted(disruptionsAllowed=0, currentHealthy=0, observedGeneration=2), EVICTED),
    *(*AGAIN, in_phase("Running", "True")),
    counted(disruptionsAllowed=1, observedGeneration=2),
    Ask(
        "POST",
        f"{PODS}/p/eviction",
        {**EVICTED.body, "deleteOptions": {"dryRun": ["All"]}},
    ),
    Ask("GET", f"{PDBS}/b"),
    Ask(
        "POST",
        f"{PODS}/p/eviction",
        {**EVICTED.body, "deleteOptions": {"preconditions": {"uid": "other"}}},
        words=False,
    ),
    Ask("GET", f"{PDBS}/b"),
    counted(disruptionsAllowed=1, observedGeneration=2),
    EVICTED,
    Ask("GET", f"{PODS}/p"),
]


def a_request(name: str = "main", **exactly: Any) -> Json:
    return {"name": name, "exactly": {"deviceClassName": "side-by-side", **exactly}}


def a_claim(*requests: Json, name: str = "c", **meta: Any) -> Json:
    return {"metadata": {"name": name, **meta}, "spec": {"devices": {"requests": [*requests]}}}


def a_slice(*devices: Json) -> Json:
    pool = {"name": "n1", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "example.org", "nodeName": "n1", "pool": pool, "devices": [*devices]}
    return {"metadata": {"name": "side-by-side"}, "spec": spec}


def a_device(name: str, memory: str = "8000Mi") -> Json:
    policy = {"default": memory, "validRange": {"min": "1Mi", "step": "1Mi"}}
    return {
        "name": name,
        "allowMultipleAllocations": True,
        "attributes": {"uuid": {"string": name.upper()}},
        "capacity": {"memory": {"value": memory, "requestPolicy": policy}},
    }


def claiming(references: list[Json], *claims: Json) -> Json:
    container = {"name": "main", "image": "x:1", "resources": {"claims": references}}
    return a_pod("q", containers=[container], resourceClaims=[*claims])


CARD: Json = {"request": "main", "driver": "example.org", "pool": "n1", "device": "card"}
CARD |= {"consumedCapacity": {"memory": "2048Mi"}}
ALLOCATED = {"allocation": {"devices": {"results": [CARD]}}}
OTHERWISE = {"allocation": {"devices": {"results": [{**CARD, "device": "other"}]}}}
RESERVED = {"reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}]}
PROTECTED = {"metadata": {"finalizers": ["resource.kubernetes.io/delete-protection"]}}
CLAIM_BY_NAME = {"name": "f", "resourceClaimName": "c"}
DEVICES = [
    Ask("POST", CLASSES, {"metadata": {"name": "side-by-side"}, "spec": {}}),
    Ask("DELETE", f"{CLASSES}/side-by-side"),
    Ask("POST", SLICES, a_slice(a_device("card"), a_device("other", "8192Mi"))),
    Ask("GET", f"{SLICES}?fieldSelector=spec.nodeName%3Dn2%2Cspec.driver%3Dexample.org"),
    Ask("GET", f"{SLICES}?fieldSelector=spec.pool%3Dn1", words=False),
    *(
        Ask("PATCH", f"{SLICES}/side-by-side", {"spec": change}, MERGE)
        for change in (
            {"nodeName": "n2"},
            {"driver": "example.com"},
            {"pool": {"name": "n2"}},
            {"pool": {"generation": 2}, "devices": [a_device("card")]},
        )
    ),
    Ask("DELETE", f"{SLICES}/side-by-side"),
    Ask("POST", DEVICE_CLAIMS, a_claim(a_request(capacity={"requests": {"memory": "8192Mi"}}))),
    Ask("PUT", f"{DEVICE_CLAIMS}/c", a_claim(a_request(count=2)), words=False),
    Ask(
        "PATCH",
        f"{DEVICE_CLAIMS}/c",
        {"spec": {"devices": {"requests": [a_request()]}}},
        MERGE,
        False,
    ),
    Ask("PATCH", f"{DEVICE_CLAIMS}/c/status", {"status": RESERVED}, MERGE),
    Ask("PATCH", f"{DEVICE_CLAIMS}/c/status", {"status": {**ALLOCATED, **RESERVED}}, MERGE),
    Ask("PATCH", f"{DEVICE_CLAIMS}/c/status", {"status": OTHERWISE}, MERGE, words=False),
    Ask("PATCH", f"{DEVICE_CLAIMS}/c", PROTECTED, MERGE),
    Ask("PATCH", f"{DEVICE_CLAIMS}/c", {"status": {"allocation": None}}, MERGE),
    Ask("DELETE", f"{DEVICE_CLAIMS}/c", {"preconditions": {"uid": "other"}}),
    Ask("DELETE", f"{DEVICE_CLAIMS}/c", {"preconditions": {"resourceVersion": "1"}}, words=False),
    Ask("DELETE", f"{DEVICE_CLAIMS}/c"),
    Ask("PATCH", f"{DEVICE_CLAIMS}/c/status", {"status": {"allocation": None}}, MERGE),
    Ask("PATCH", f"{DEVICE_CLAIMS}/c/status", {"status": None}, MERGE),
    Ask("PATCH", f"{DEVICE_CLAIMS}/c", {"metadata": {"finalizers": None}}, MERGE),
    Ask("GET", f"{DEVICE_CLAIMS}/c"),
    Ask("POST", DEVICE_CLAIMS, a_claim(a_request(), name="gone")),
    Ask("DELETE", f"{DEVICE_CLAIMS}/gone"),
    Ask("POST", DEVICE_CLAIMS, a_claim(a_request(), name="Bad_Name")),
    Ask("POST", PODS, claiming([{"name": "f", "request": "main"}], CLAIM_BY_NAME)),
]
ASKS: Final = {
    "writes-and-reads": WRITES_AND_READS,
    "routes": ROUTES,
    "validation": VALIDATION,
    "defaults": DEFAULTS,
    "strategic-patches": STRATEGICS,
    "patches": PATCHES,
    "binding-and-eviction": BINDING_AND_EVICTION,
    "registry": REGISTRY,
    "subresources": SUBRESOURCES,
    "devices": DEVICES,
}
