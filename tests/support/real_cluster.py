"""A real cluster of one node for tests, which runs any pods: for what a user installs.

etcd, kube-apiserver, kube-controller-manager, kube-scheduler, containerd, kubelet and kube-proxy
run in a network and with mounts of their own, with kubelet's and containerd's folders where a real
node has them, so that manifests run as they are written. Pods reach each other, Services by address
and by name, and the API server. Nothing outside can be reached; nothing enforces NetworkPolicies.

    async with a_real_cluster(images=[our_image("docker.io/library/fracgpu:0.1.0")]) as cluster:
        await cluster.apply(DEPLOY)
        await cluster.wait_ready("deployment/fracgpu-webhook", namespace="fracgpu-system")
        await cluster.kubectl("label", "node", NODE, "fracgpu.io/share=true")
"""

import json
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from certs.authority import make_ca, make_client
from fracgpu import names
from kube.access import connect_to
from kube.client import KubeClient
from kube.errors import NotFound
from kube.kinds import EVENTS, NODES, PODS
from kube.objects import decode_object
from process.clock import SystemClock
from simulator.envtest.control_plane import ASSETS_ENV, ControlPlane, find_assets
from tests.support import cluster_dns
from tests.support.images import NoImageError, our_image, program_image
from tests.support.kubectl import DEPLOY, Kubectl
from tests.support.namespaces import OwnMounts, own_mounts, own_network
from tests.support.processes import Child
from tests.support.real_apiserver import start_stock_scheduler
from tests.support.real_node import alone, runtime_or_skip, state_of
from tests.support.real_runtime import (
    IMAGE,
    Runtime,
    containerd_config,
    end_what_is_left,
    import_archive,
    import_image,
    kubelet_config,
    tag_image,
)
from tests.support.waiting import until

Json = dict[str, Any]

NODE: Final = "real-1"
ADDRESS: Final = "172.30.0.1"
_PODS_RANGE: Final = "10.244.0.0/24"
_KUBELET: Final = f"system:node:{NODE}"
_PROXY: Final = "system:kube-proxy"
_CALLER: Final = "kube-apiserver-of-the-test"
_BINARIES: Final = ("kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy")
_PROGRAMS: Final = ("kubectl", "iptables", "ip", "nsenter", "unshare")
_CNI: Final = Path("/usr/lib/cni")
_READY_LIMIT_S: Final = 300.0
_ANYTHING: Final = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "anything"}}


@dataclass(frozen=True, slots=True, kw_only=True)
class RealCluster:
    """A running cluster; it ends with :func:`a_real_cluster`'s block."""

    root: Path
    runtime: Runtime
    api: ControlPlane
    client: KubeClient
    kubectl: Kubectl
    mounts: OwnMounts
    containerd: Child
    kubelet: Child
    proxy: Child
    dns: Child

    @property
    def containerd_socket(self) -> Path:
        """Where the node's containerd listens."""
        return self.root / "run" / "containerd.sock"

    def name_image(self, image: str, name: str) -> None:
        """Give an image of the node the name by which a reader's node would have pulled it."""
        tag_image(self.runtime, socket=self.containerd_socket, image=image, name=name)

    async def apply(self, folder: Path) -> None:
        """Apply a folder with a kustomization, as ``kubectl apply -k`` does."""
        await self.kubectl("apply", "-k", str(folder))

    async def wait_ready(
        self,
        what: str,
        *,
        namespace: str = "default",
        limit_s: float = _READY_LIMIT_S,
    ) -> None:
        """Wait until all pods of a Deployment or DaemonSet are its newest ones and Ready.

        Args:
            what: e.g. ``deployment/fracgpu-webhook``.
            namespace: of the workload.
            limit_s: time limit in seconds.

        Raises:
            AssertionError: it took longer; the message has the state of its pods.
        """
        count: list[object] = []

        async def enough() -> bool:
            found = json.loads(await self.kubectl("get", what, "-n", namespace, "-o", "json"))
            status = found.get("status", {})
            wanted = found["spec"].get("replicas", status.get("desiredNumberScheduled", 0))
            newest = status.get("updatedReplicas", status.get("updatedNumberScheduled", 0))
            now = status.get("readyReplicas", status.get("numberReady", 0))
            count[:] = [now, "of", wanted, "ready,", newest, "of the newest"]
            read = status.get("observedGeneration", 0) >= found["metadata"]["generation"]
            return bool(read and wanted and newest == now == wanted)

        try:
            await until(enough, what=f"{what} is ready", limit_s=limit_s)
        except AssertionError as error:
            description = await self.describe(namespace)
            raise AssertionError(f"{error}: {count}\n{description}") from None

    async def wait_pod(self, name: str) -> Json:
        """Wait until a pod of the namespace default runs, and return it.

        Raises:
            AssertionError: it took longer, or the pod has failed meanwhile.
        """
        pod: Json = {}

        async def there() -> bool:
            pod.clear()
            pod.update(await self.client.get_object(PODS, name, namespace="default"))
            assert pod["status"].get("phase") != "Failed", state_of(pod)
            return bool(pod["status"].get("phase") == "Running")

        try:
            await until(there, what=f"the pod {name} runs", limit_s=120)
        except AssertionError as error:
            raise AssertionError(f"{error}: {await self.describe('default')}") from None
        return pod

    async def pods(self, namespace: str, *, app: str = "") -> list[Json]:
        """Return the pods of a namespace, or of one application in it."""
        listed = await self.client.list(PODS, namespace=namespace)
        found: list[Json] = [decode_object(raw) for raw in listed.items]
        label = "app.kubernetes.io/name"
        return [
            item
            for item in found
            if not app or item["metadata"].get("labels", {}).get(label) == app
        ]

    async def node(self) -> Json:
        """Return the node."""
        return await self.client.get_object(NODES, NODE)

    def logs(self, namespace: str, pod: str) -> dict[str, str]:
        """Return a pod's logs by container, over all starts."""
        found: dict[str, str] = {}
        for file in sorted((self.root / "logs").glob(f"{namespace}_{pod}_*/*/*.log")):
            found[file.parent.name] = found.get(file.parent.name, "") + file.read_text(
                errors="replace"
            )
        return found

    async def describe(self, namespace: str) -> str:
        """Return the state of a namespace's pods, the end of their logs and the last Events."""
        lines = []
        for pod in await self.pods(namespace):
            name = pod["metadata"]["name"]
            starts = [
                f"{status['name']}: ready {status['ready']}, {status['restartCount']} restarts,"
                f" {status['state']}"
                for status in pod.get("status", {}).get("containerStatuses", ())
            ]
            lines.append(f"{name}: {state_of(pod)}: {'; '.join(starts)}")
            for container, text in self.logs(namespace, name).items():
                lines += [f"  {container}> {line}" for line in text.splitlines()[-8:]]
        listing = await self.client.list(EVENTS, namespace=namespace)
        events: list[Json] = [decode_object(raw) for raw in listing.items]
        lines += [f"event: {event['reason']}: {event.get('message')}" for event in events[-30:]]
        return "\n".join(lines)

    async def restart_kubelet(self) -> None:
        """Kill kubelet and start it again, as systemd does after a crash."""
        await self.kubelet.kill()
        await self.kubelet.start()


@asynccontextmanager
async def a_real_cluster(
    *,
    images: Iterable[Path] = (),
    handlers: Mapping[str, Path] | None = None,
) -> AsyncIterator[RealCluster]:
    """Start a cluster of one node, or skip the test with what this machine lacks.

    Args:
        images: archives of the node's images, besides busybox; built before, because nothing
            can be fetched from inside.
        handlers: programs as runc, by the name that a RuntimeClass has for each.
    """
    runtime = cluster_runtime_or_skip()
    async with AsyncExitStack() as stack:
        stack.enter_context(alone())
        folder = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="fg-", ignore_cleanup_errors=True)
        )
        root = Path(folder)
        stack.enter_context(own_network(ADDRESS))
        _make_folders(root)
        api = await stack.enter_async_context(_control_plane(root))
        client = await stack.enter_async_context(
            connect_to(api.url, token=api.token, ca_file=api.ca_file)
        )
        mounts = await stack.enter_async_context(
            own_mounts(
                root / "mounts",
                {
                    "/var/lib/kubelet": root / "kubelet",
                    "/run/containerd": root / "run",
                },
            )
        )
        cluster = _lay_out(root, runtime, api, client, mounts, handlers or {})
        stack.push_async_callback(_end_all, cluster)
        await _start(cluster, images)
        yield cluster


def cluster_runtime_or_skip() -> Runtime:
    """Return the runtime for a cluster on this machine, or skip the test with what is missing."""
    runtime = runtime_or_skip()
    assets = Path(os.environ[ASSETS_ENV])
    missing = [binary for binary in _BINARIES if not (assets / binary).is_file()]
    if missing:
        pytest.skip(f"{ASSETS_ENV}={assets} lacks {', '.join(missing)}")
    absent = [program for program in _PROGRAMS if shutil.which(program) is None]
    if absent:
        pytest.skip(f"not installed: {', '.join(absent)} (kubectl, iptables, iproute2, util-linux)")
    plugins = [
        plugin for plugin in ("ptp", "host-local", "loopback") if not (_CNI / plugin).exists()
    ]
    if plugins:
        pytest.skip(f"{_CNI} lacks {', '.join(plugins)}; Debian: containernetworking-plugins")
    return runtime


def _make_folders(root: Path) -> None:
    for folder in ("kubelet", "run", "cni", "logs", "api"):
        (root / folder).mkdir()


@asynccontextmanager
async def _control_plane(root: Path) -> AsyncIterator[ControlPlane]:
    """Start the control plane as in real clusters: with all its admission plugins."""
    now, life = SystemClock().now(), timedelta(days=1)
    ca = make_ca(name="test CA", now=now, life=life)
    caller = make_client(ca, name=_CALLER, now=now, life=life)
    for name, pem in (
        ("ca.crt", ca.cert_pem),
        ("caller.crt", caller.cert_pem),
        ("caller.key", caller.key_pem),
    ):
        (root / name).write_bytes(pem)
    (root / "admission.json").write_text(json.dumps(_admission_configuration()))
    wanted = {
        "bind-address": ADDRESS,
        "advertise-address": ADDRESS,
        "endpoint-reconciler-type": None,
        "authorization-mode": "Node,RBAC",
        "disable-admission-plugins": None,
        "enable-admission-plugins": "NodeRestriction",
        "admission-control-config-file": str(root / "admission.json"),
        "client-ca-file": str(root / "ca.crt"),
        "requestheader-client-ca-file": str(root / "ca.crt"),
        "requestheader-allowed-names": "front-proxy-client",
        "kubelet-client-certificate": str(root / "caller.crt"),
        "kubelet-client-key": str(root / "caller.key"),
        "kubelet-preferred-address-types": "InternalIP",
    }
    users = {_KUBELET: "system:nodes", _PROXY: "system:node-proxiers"}
    assets = find_assets(os.environ[ASSETS_ENV])
    async with ControlPlane.start(assets, root / "api", flags=wanted, users=users) as api:
        await api.start_controller_manager()
        await start_stock_scheduler(api, api.kubeconfig(root / "kubeconfig"))
        yield api


def _admission_configuration() -> Json:
    """Return a configuration that admits critical pods only with a quota, as on some providers.

    https://kubernetes.io/docs/concepts/policy/resource-quotas/#limit-priority-class-consumption-by-default
    """
    critical = {
        "scopeName": "PriorityClass",
        "operator": "In",
        "values": ["system-node-critical", "system-cluster-critical"],
    }
    quota = {
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "ResourceQuotaConfiguration",
        "limitedResources": [{"resource": "pods", "matchScopes": [critical]}],
    }
    return {
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AdmissionConfiguration",
        "plugins": [{"name": "ResourceQuota", "configuration": quota}],
    }


def _lay_out(
    root: Path,
    runtime: Runtime,
    api: ControlPlane,
    client: KubeClient,
    mounts: OwnMounts,
    handlers: Mapping[str, Path],
) -> RealCluster:
    assets = Path(os.environ[ASSETS_ENV])
    socket = root / "run" / "containerd.sock"
    files: dict[str, object] = {
        "cni/10-ptp.conflist": _network(),
        "kubelet.yaml": {
            **kubelet_config(root, socket),
            "address": ADDRESS,
            "clusterDNS": [ADDRESS],
            "clusterDomain": cluster_dns.DOMAIN,
            "resolvConf": "",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(root / "ca.crt")},
            },
        },
        "kube-proxy.yaml": _proxy_configuration(
            api.kubeconfig(root / "kube-proxy.kubeconfig", user=_PROXY)
        ),
    }
    for name, content in files.items():
        (root / name).write_text(json.dumps(content))
    (root / "containerd.toml").write_text(
        containerd_config(
            root,
            socket=socket,
            runc=runtime.runc,
            cdi_dir=Path("/var/run/cdi"),
            cdi=True,
            snapshotter="overlayfs",
            handlers=handlers,
        )
    )
    path = {"PATH": f"{runtime.folder}:{os.environ['PATH']}"}
    kubelet: list[str | Path] = [
        assets / "kubelet",
        f"--config={root / 'kubelet.yaml'}",
        f"--kubeconfig={api.kubeconfig(root / 'kubelet.kubeconfig', user=_KUBELET)}",
        f"--hostname-override={NODE}",
        f"--node-ip={ADDRESS}",
        "--v=2",
    ]
    proxy: list[str | Path] = [assets / "kube-proxy", f"--config={root / 'kube-proxy.yaml'}"]
    containerd: list[str | Path] = [runtime.containerd, "-c", root / "containerd.toml"]
    return RealCluster(
        root=root,
        runtime=runtime,
        api=api,
        client=client,
        kubectl=Kubectl.find(root / "kubeconfig"),
        mounts=mounts,
        containerd=Child(mounts.command(*containerd), log=root / "containerd.log", env=path),
        kubelet=Child(mounts.command(*kubelet), log=root / "kubelet.log"),
        proxy=Child(mounts.command(*proxy), log=root / "kube-proxy.log"),
        dns=Child(
            [sys.executable, "-m", cluster_dns.__name__, ADDRESS, root / "kubeconfig"],
            log=root / "dns.log",
        ),
    )


def _network() -> Json:
    """Configure CNI: each pod has a veth pair to the node, and a default route."""
    addresses = {
        "type": "host-local",
        "dataDir": "/run/cni-addresses",
        "ranges": [[{"subnet": _PODS_RANGE}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    plugin = {"type": "ptp", "ipMasq": False, "ipam": addresses}
    return {"cniVersion": "0.4.0", "name": "pods", "plugins": [plugin]}


def _proxy_configuration(kubeconfig: Path) -> Json:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "hostnameOverride": NODE,
        "clusterCIDR": _PODS_RANGE,
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        # The machine's own limits are not changed.
        "conntrack": {"maxPerCore": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    }


async def _start(cluster: RealCluster, images: Iterable[Path]) -> None:
    binding = ("clusterrolebinding", "apiserver-asks-kubelet", f"--user={_CALLER}")
    await cluster.kubectl("create", *binding, "--clusterrole=system:kubelet-api-admin")
    socket = cluster.containerd_socket
    await cluster.containerd.start()
    await cluster.containerd.wait_socket(socket)
    import_image(cluster.runtime, socket=socket, workdir=cluster.root)
    for archive in images:
        import_archive(cluster.runtime, socket=socket, archive=archive)
    for child in (cluster.dns, cluster.proxy, cluster.kubelet):
        await child.start()

    async def ready() -> bool:
        for child in (cluster.dns, cluster.proxy, cluster.kubelet):
            assert child.alive, child.tail()
        try:
            node = await cluster.node()
        except NotFound:
            return False
        # No pod is admitted before its service account exists, and kubectl applies nothing
        # before the API server has its schemas.
        account = await cluster.kubectl.ask("get", "serviceaccount", "default")
        applies = await cluster.kubectl.ask("apply", "--dry-run=server", "-f", "-", stdin=_ANYTHING)
        return account.ok and applies.ok and not node["spec"].get("taints")

    await until(ready, what="the node is ready", limit_s=120)


async def _end_all(cluster: RealCluster) -> None:
    for child in (cluster.kubelet, cluster.proxy, cluster.dns):
        await child.kill()
    await cluster.containerd.end()
    end_what_is_left(cluster.root, socket=cluster.root / "run" / "containerd.sock")


SIMULATED: Final = DEPLOY.parent / "overlays" / "simulated-cards"
SYSTEM: Final = names.SYSTEM_NAMESPACE
ROLES: Final = tuple(
    f"deployment/fracgpu-{role}" for role in ("certs", "webhook", "scheduler", "rebalancer")
)
AGENT: Final = "daemonset/fracgpu-deviceplugin"


@asynccontextmanager
async def a_cluster_with_our_images(
    workdir: Path, *, handlers: Mapping[str, Path] | None = None
) -> AsyncIterator[RealCluster]:
    """Start a cluster whose node has the images that ``deploy/`` names, or skip the test.

    *handlers* are programs as runc, by the name that a RuntimeClass has for each.
    """
    cluster_runtime_or_skip()
    scheduler = Path(os.environ[ASSETS_ENV]) / "kube-scheduler"
    try:
        ours = our_image(f"docker.io/library/{image_of('fracgpu')}")
    except NoImageError as error:
        pytest.skip(f"no image: {error}")
    theirs = program_image(image_of("kube-scheduler"), scheduler, workdir / "kube-scheduler.tar")
    async with a_real_cluster(images=[ours, theirs], handlers=handlers) as cluster:
        yield cluster


def image_of(name: str) -> str:
    """Return the name and tag with which ``deploy/`` runs the image that it calls *name*."""
    written = yaml.safe_load((DEPLOY / "kustomization.yaml").read_text())["images"]
    found = next(image for image in written if image["name"] == name)
    return f"{found.get('newName', name)}:{found['newTag']}"


async def install(cluster: RealCluster, folder: Path = SIMULATED) -> None:
    """Follow the README, and wait until every role's pods are Ready."""
    await cluster.apply(folder)
    await cluster.kubectl("label", "node", "--all", f"{names.SHARE_LABEL}=true")
    for what in (*ROLES, AGENT):
        await cluster.wait_ready(what, namespace=SYSTEM)


def a_long_half() -> dict[str, Any]:
    """Return a pod with half a card that keeps running."""
    container = {
        "name": "train",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", 'trap "exit 0" TERM; sleep 3600 & wait'],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "half",
            "namespace": "default",
            "annotations": {names.FRACTION: "0.5"},
        },
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [container]},
    }


async def wait_counted(cluster: RealCluster, *, mib: int) -> None:
    """Wait until kubelet shows that much card memory as allocatable."""

    async def counted() -> bool:
        amounts = (await cluster.node())["status"]["allocatable"]
        slots: str = amounts.get(names.GPU_SLOT, "0")
        return bool(amounts.get(names.GPU_MEM) == str(mib) and slots != "0")

    await until(counted, what=f"{mib} MiB are allocatable", limit_s=90)
