"""Values of the chart that are not about one workload alone."""

from typing import Final

from tools.helm_chart.settings import (
    BOOLEAN,
    NAME,
    OBJECTS,
    PATH,
    RESOURCES,
    STRING,
    STRINGS_BY_NAME,
    TAKEN,
    Place,
    Setting,
    one_of,
)

IMAGES: Final = (
    Setting(
        key="image.registry",
        doc="Registry and folder of FracGPU's image, e.g. registry.example.com/team.",
        schema=STRING,
        default="",
    ),
    Setting(key="image.repository", doc="Its name.", schema=STRING, default="fracgpu"),
    Setting(
        key="image.tag", doc="Its tag; empty: the chart's appVersion.", schema=STRING, default=""
    ),
    Setting(
        key="image.digest",
        doc="sha256:... pins the image; the tag is then only for people.",
        schema={"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"},
        default="",
    ),
    Setting(
        key="image.pullPolicy",
        doc="When it is pulled; empty: Kubernetes decides.",
        schema=one_of("", "Always", "IfNotPresent", "Never"),
        default="",
    ),
    Setting(
        key="imagePullSecrets",
        doc="Secrets of the namespace for private registries: [{name: ...}].",
        schema=OBJECTS,
        default=[],
    ),
    Setting(
        key="imageRegistry",
        doc="A mirror: replaces the registry of every image of the chart.",
        schema=STRING,
        default="",
    ),
)

CLUSTER: Final = (
    Setting(
        key="platform",
        doc="What the cluster runs on, where that matters: docs/install.md. rke2 is as k3s.",
        schema=one_of("", "aks", "eks", "gke", "k3s", "openshift", "rke2"),
        default="",
    ),
    Setting(
        key="namespace.create",
        doc="Also renders the Namespace, for GitOps and helm template. Not for helm install, which "
        "needs the namespace before it renders anything: --create-namespace.",
        schema=BOOLEAN,
        default=False,
    ),
    Setting(
        key="crds.install",
        doc="Installs and upgrades the CustomResourceDefinitions.",
        schema=BOOLEAN,
        default=True,
    ),
    Setting(
        key="crds.keep",
        doc="Leaves them, and the Moves, in the cluster when the release is uninstalled.",
        schema=BOOLEAN,
        default=False,
    ),
    Setting(
        key="policies.devices",
        doc=(
            "What happens to pods that take devices past FracGPU, in namespaces without the label "
            "fracgpu.io/devices: [Deny], [Warn] or [Audit] (docs/security.md)."
        ),
        schema={"type": "array", "items": one_of("Deny", "Warn", "Audit"), "minItems": 1},
        default=TAKEN,
        places=tuple(
            Place(kind="ValidatingAdmissionPolicyBinding", name=name, path="spec.validationActions")
            for name in ("fracgpu-devices", "fracgpu-device-environment")
        ),
    ),
    Setting(
        key="networkPolicies.enabled",
        doc="Closes the ports of our pods to everybody who needs none of them.",
        schema=BOOLEAN,
        default=True,
    ),
    Setting(
        key="podDisruptionBudgets.enabled",
        doc="Keeps one replica of webhook and scheduler while nodes are drained.",
        schema=BOOLEAN,
        default=True,
    ),
    Setting(
        key="podDisruptionBudgets.minAvailable",
        doc="Replicas of each that a drain leaves running; fewer than replicas, or no node drains.",
        schema={"type": "integer", "minimum": 1},
        places=tuple(
            Place(kind="PodDisruptionBudget", name=name, path="spec.minAvailable")
            for name in ("fracgpu-webhook", "fracgpu-scheduler")
        ),
    ),
    Setting(
        key="certificates.mode",
        doc="own: FracGPU issues its certificates; cert-manager: that one does.",
        schema=one_of("own", "cert-manager"),
        default="own",
    ),
    Setting(
        key="certificates.issuer",
        doc="With cert-manager: your own issuer, {kind: ..., name: ...}; empty: one of ours.",
        schema=STRINGS_BY_NAME,
        default={},
        places=tuple(
            Place(kind="Certificate", name=name, path="spec.issuerRef")
            for name in ("fracgpu-webhook", "fracgpu-scheduler", "fracgpu-scheduler-client")
        ),
    ),
    Setting(
        key="scheduler.mode",
        doc="own: a kube-scheduler of ours places pods with a share; prepare, then cluster: the "
        "cluster's own one does (docs/scheduler.md).",
        schema=one_of("own", "prepare", "cluster"),
        default="own",
    ),
    Setting(
        key="scheduler.kubeScheduler.image.registry",
        doc="Registry of kube-scheduler's image.",
        schema=STRING,
        default="registry.k8s.io",
    ),
    Setting(
        key="scheduler.kubeScheduler.image.repository",
        doc="Its name.",
        schema=STRING,
        default="kube-scheduler",
    ),
    Setting(
        key="scheduler.kubeScheduler.image.tag",
        doc="Its tag; empty: the version of the cluster.",
        schema=STRING,
        default="",
    ),
    Setting(
        key="scheduler.kubeScheduler.resources",
        doc="Requests and limits of kube-scheduler.",
        schema=RESOURCES,
        places=(
            Place(
                kind="Deployment",
                name="fracgpu-scheduler",
                path="spec.template.spec.containers[kube-scheduler].resources",
            ),
        ),
    ),
)

NODES: Final = (
    Setting(
        key="simulatedCards.enabled",
        doc="For nodes without cards: each labelled node gets the simulated cards below.",
        schema=BOOLEAN,
        default=False,
    ),
    Setting(
        key="simulatedCards.cards",
        doc="The cards of each node.",
        schema=STRING,
        default=TAKEN,
        places=(Place(kind="ConfigMap", name="fracgpu-simulated-cards", path="data[cards.yaml]"),),
    ),
    Setting(
        key="deviceplugin.runtimeClassName",
        doc="Runtime class of the node agent, where NVIDIA's runtime is not the nodes' default: "
        "nvidia, also with NVIDIA's GPU Operator.",
        schema=STRING,
        default="",
        places=(
            Place(
                kind="DaemonSet",
                name="fracgpu-deviceplugin",
                path="spec.template.spec.runtimeClassName",
            ),
        ),
    ),
    Setting(
        key="deviceplugin.readAsNode",
        doc="The node agents may read the pods of their own node alone; needs Kubernetes 1.36.",
        schema=BOOLEAN,
        default=False,
    ),
    Setting(
        key="deviceplugin.runtimeFolder",
        doc="The node's folder with the container runtime's socket; empty: the platform's. Another "
        "name than containerd.sock needs --cri-socket=/run/containerd/NAME in extraArgs.",
        schema=PATH,
        default="",
        places=(
            Place(
                kind="DaemonSet",
                name="fracgpu-deviceplugin",
                path="spec.template.spec.volumes[runtime].hostPath.path",
            ),
        ),
    ),
    Setting(
        key="deviceplugin.kubeletFolder",
        doc="kubelet's folder on the nodes (its --root-dir).",
        schema={"type": "string", "pattern": "^/.*[^/]$"},
        default="/var/lib/kubelet",
    ),
)

PROMETHEUS: Final = (
    Setting(
        key="prometheus.url",
        doc="Where the rebalancer asks. Prometheus has to scrape FracGPU: see the next values.",
        schema={"type": "string", "pattern": "^https?://[^/]"},
        places=(
            Place(
                kind="Deployment",
                name="fracgpu-rebalancer",
                path="spec.template.spec.containers[rebalancer]"
                ".env[FRACGPU_REBALANCER_PROMETHEUS_URL].value",
            ),
        ),
    ),
    Setting(
        key="prometheus.credentialsSecret",
        doc="Secret with what it presents to Prometheus (docs/rebalancer.md lists the keys); there "
        "need not be one.",
        schema=NAME,
        places=(
            Place(
                kind="Deployment",
                name="fracgpu-rebalancer",
                path="spec.template.spec.volumes[prometheus].secret.secretName",
            ),
        ),
    ),
    Setting(
        key="prometheus.namespace",
        doc="The namespace that may scrape (NetworkPolicies).",
        schema=STRING,
    ),
    Setting(
        key="prometheus.scrapeAnnotations",
        doc="Annotations prometheus.io/scrape and prometheus.io/port on our pods.",
        schema=BOOLEAN,
        default=True,
    ),
    Setting(
        key="prometheus.operator.enabled",
        doc="PodMonitor and PrometheusRule; auto: if the cluster has these kinds.",
        schema=one_of("auto", "always", "never"),
        default="auto",
    ),
    Setting(
        key="prometheus.operator.runbookBaseUrl",
        doc="Address of your copy of this repository, put before docs/runbooks.md in each alert's "
        "runbook_url.",
        schema=STRING,
        default="",
    ),
    Setting(
        key="prometheus.operator.labels",
        doc="Labels by which your Prometheus selects them, e.g. {release: kube-prometheus-stack}.",
        schema=STRINGS_BY_NAME,
        default={},
    ),
)

DASHBOARDS: Final[tuple[Setting, ...]] = (
    Setting(
        key="dashboards.enabled",
        doc="Dashboards for Grafana, as ConfigMaps labelled grafana_dashboard=1.",
        schema=BOOLEAN,
        default=False,
    ),
    Setting(
        key="dashboards.labels",
        doc="More labels of these ConfigMaps, if your Grafana looks for others.",
        schema=STRINGS_BY_NAME,
        default={},
    ),
)
