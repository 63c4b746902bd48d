"""A real node for tests: containerd, kubelet and the node agent as processes of their own.

Little of the machine is touched: kubelet's folder of device plugins, whose path is fixed, is in a
mount namespace of its own, and everything else is in a temporary folder. Empty control groups below
``kubepods`` remain.
"""

import fcntl
import itertools
import json
import os
import stat
import sys
import tempfile
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from deviceplugin.kubelet.pod_resources import PodResourcesClient
from fracgpu import names
from fracgpu.cards.card import Card, CardUuid
from fracgpu.k8s.quantity import integer_amount
from kube.access import connect
from kube.client import KubeClient
from kube.errors import NotFound
from kube.kinds import NODES, PODS
from kube.objects import decode_object
from simulator.cards.simulated_cards import cards_document, write_cards_file
from simulator.envtest.control_plane import ASSETS_ENV, ControlPlane, find_assets
from tests.support.gpu import a_binding
from tests.support.processes import Child
from tests.support.real_runtime import (
    CONTAINERD2_ENV,
    IMAGE,
    NoRuntimeError,
    Runtime,
    containerd_config,
    end_what_is_left,
    find_containerd2,
    find_runtime,
    import_image,
    kubelet_config,
)
from tests.support.waiting import until, until_true

Json = dict[str, Any]

MARK: Final = "/dev/fake-card"
# Each container writes what it sees to a file of its own, atomically.
_TELL: Final = (
    'trap "exit 0" TERM; f=/seen/$POD_UID.$NAME.$$.$(cat /proc/uptime | tr -c "0-9" "_"); '
    '{ for d in /dev/fake-card*; do stat -c "device %n %t:%T" $d; done; '
    'for v in $(env); do echo "env $v"; done; '
    'for v in $(cat /run/fracgpu/env); do echo "told $v"; done; '
    'for v in $(cat $CUDA_MPS_PIPE_DIRECTORY/card </dev/null); do echo "mps $v"; done; '
    "} >$f.new 2>&1; mv $f.new $f.seen; "
)
_STAY: Final = "sleep 3600 & wait"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What one start of a container saw of cards.

    Attributes:
        devices: device numbers by path.
        from_file: the lines of a file that the driver's own CDI spec may mount.
        mps: the card whose MPS daemon's pipes are mounted.
    """

    container: str
    devices: Mapping[str, str]
    env: Mapping[str, str]
    from_file: tuple[str, ...] = ()
    mps: tuple[str, ...] = ()


def state_of(pod: Json | None) -> str:
    """Return a pod's phase, or why it is not running."""
    if pod is None:
        return "gone"
    status = pod.get("status", {})
    phase: str = status.get("phase", "")
    if phase == "Running":
        return phase
    statuses = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
    waits = [
        status["state"]["waiting"] for status in statuses if "waiting" in status.get("state", {})
    ]
    said = "; ".join(f"{wait.get('reason')} {wait.get('message', '')}" for wait in waits)
    return f"{phase}: {status.get('message', '')} {said}"


def read_sight(file: Path) -> Sight:
    """Parse what a container wrote about itself."""
    devices, env = {}, {}
    from_file: list[str] = []
    mps: list[str] = []
    for line in file.read_text(errors="replace").splitlines():
        kind, _, rest = line.partition(" ")
        if kind == "device":
            path, _, numbers = rest.rpartition(" ")
            devices[path] = numbers
        elif kind == "env":
            key, _, value = rest.partition("=")
            env[key] = value
        elif kind == "told":
            from_file.append(rest)
        elif kind == "mps":
            mps.append(rest)
    return Sight(
        container=file.name.split(".")[1],
        devices=devices,
        env=env,
        from_file=tuple(from_file),
        mps=tuple(mps),
    )


_names: Final = itertools.count(1)


def a_container(name: str, *, mib: int, slots: int, stay: bool = True) -> Json:
    """Return a container that writes what it sees, and stays or ends; *slots* may be none."""
    amounts = {names.GPU_MEM: str(mib * slots), names.GPU_SLOT: str(slots)} if slots else {}
    return {
        "name": name,
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", _TELL + (_STAY if stay else "exit 0")],
        "env": [
            {"name": "NAME", "value": name},
            {"name": "POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
        ],
        "resources": {"limits": amounts, "requests": amounts},
        "volumeMounts": [{"name": "seen", "mountPath": "/seen"}],
    }


def a_real_pod(containers: Sequence[Json], *, reports: Path, inits: Sequence[Json] = ()) -> Json:
    """Return a pod of *containers* that needs no network of its own and ends quickly."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"train-{next(_names)}", "namespace": "default"},
        "spec": {
            "schedulerName": "by-the-test",
            "hostNetwork": True,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 1,
            "initContainers": list(inits),
            "containers": list(containers),
            "volumes": [{"name": "seen", "hostPath": {"path": str(reports)}}],
        },
    }


NODE: Final = "real-1"
_PLUGINS: Final = Path("/var/lib/kubelet/device-plugins")
# Harmless character devices that differ: null, zero, full, random, urandom and kmsg's neighbours.
_MINORS: Final = (3, 5, 7, 8, 9)
_GPU_DEVICES: Final = 1  # major number of the "mem" devices


@dataclass(slots=True, kw_only=True)
class RealNode:
    """A running node; it ends with :func:`a_real_node`'s block."""

    root: Path
    api: ControlPlane
    client: KubeClient
    cards: tuple[Card, ...]
    containerd: Child
    kubelet: Child
    agent: Child
    containerd_socket: Path
    minors: Mapping[CardUuid, int]
    bound: list[str] = field(default_factory=list)

    @property
    def cdi_dir(self) -> Path:
        return self.root / "cdi"

    @property
    def reports(self) -> Path:
        """The folder where containers write what they see."""
        return self.root / "seen"

    async def restart_kubelet(self) -> None:
        """Kill kubelet and start it again, as systemd does after a crash."""
        await self.kubelet.kill()
        await self.kubelet.start()

    async def restart_containerd(self, *, cdi: bool | None = None) -> None:
        """Kill containerd and start it again; its containers live on.

        Args:
            cdi: whether it reads CDI specs from now on; None leaves it as it is.
        """
        await self.containerd.kill()
        if cdi is not None:
            config = self.root / "containerd.toml"
            was, now = (f"  enable_cdi = {str(each).lower()}" for each in (not cdi, cdi))
            config.write_text(config.read_text().replace(was, now))
        self.containerd_socket.unlink(missing_ok=True)
        await self.containerd.start()
        await self.containerd.wait_socket(self.containerd_socket)

    async def restart_agent(self) -> None:
        """Kill the agent and start it again, without state."""
        await self.agent.kill()
        await self.agent.start()

    def logged(self, *words: str) -> int:
        """Return how many lines of kubelet's log have all *words*."""
        lines = self.kubelet.log.read_text(errors="replace").splitlines()
        return sum(all(word in line for word in words) for line in lines)

    async def wait_logged(self, *words: str, times: int = 1) -> None:
        await until_true(
            lambda: self.logged(*words) >= times, what=f"kubelet logs {words}", limit_s=60
        )

    async def replace_agent(self, agent: Child, *, slots: int) -> None:
        """Kill the agent, start *agent*, and wait until kubelet has its *slots*.

        The node's amounts do not say it: kubelet keeps them while an agent is away for a moment.
        """
        words = ("Processed device updates", f"healthyCount={slots}")
        before = self.logged(*words)
        await self.agent.kill()
        self.agent = agent
        await agent.start()
        await self.wait_logged(*words, times=before + 1)

    async def node(self) -> Json:
        """Return the node; an empty object before kubelet has registered it."""
        try:
            return await self.client.get_object(NODES, NODE)
        except NotFound:
            return {}

    @property
    def pod_resources(self) -> PodResourcesClient:
        """Kubelet's own list of who holds which slots."""
        socket = self.root / "kubelet" / "pod-resources" / "kubelet.sock"
        return PodResourcesClient(socket, timeout_s=10)

    async def holders(self, pods: Mapping[str, Json]) -> dict[str, str]:
        """Return which of *pods*, by UID, holds each slot."""
        uids = {pod["metadata"]["name"]: uid for uid, pod in pods.items()}
        return {
            slot: uids[holder.pod]
            for holder in await self.pod_resources.holders()
            for slot in holder.slot_ids
            if holder.pod in uids
        }

    async def wait_counted(self, *, slots: int, mib: int) -> None:
        """Wait until kubelet shows these amounts as allocatable."""

        async def counted() -> bool:
            assert self.agent.alive, self.agent.tail()
            assert self.kubelet.alive, self.kubelet.tail()
            amounts = (await self.node()).get("status", {}).get("allocatable", {})
            found = [
                integer_amount(amounts.get(resource, ""))
                for resource in (names.GPU_SLOT, names.GPU_MEM)
            ]
            return found == [slots, mib]

        await until(counted, what=f"{slots} slots and {mib} MiB are allocatable", limit_s=90)

    async def create(self, body: Json) -> Json:
        return await self.client.create(PODS, body)

    async def bind(
        self, pod: Json, borrow_mib: int = 0, /, **assigned: Sequence[tuple[CardUuid, int]]
    ) -> None:
        """Bind a pod with its assignment, as the extender does: (card, MiB) by container."""
        metadata = pod["metadata"]
        binding = a_binding(pod, NODE, assigned, borrow_mib=borrow_mib)
        await self.client.bind(binding, namespace=metadata["namespace"], name=metadata["name"])
        self.bound.append(metadata["uid"])

    async def bind_pod(
        self, card: int, *, mib: int = 500, owners: Sequence[Mapping[str, Any]] = ()
    ) -> Json:
        """Create a pod of one container, and bind it with a slice of a card; return it."""
        body = a_real_pod([a_container("train", mib=mib, slots=1)], reports=self.reports)
        body["metadata"]["ownerReferences"] = list(owners)
        pod = await self.create(body)
        await self.bind(pod, train=[(self.cards[card].uuid, mib)])
        return pod

    async def pods(self) -> dict[str, Json]:
        """Return the pods by UID."""
        listed = await self.client.list(PODS)
        found = [decode_object(raw) for raw in listed.items]
        return {pod["metadata"]["uid"]: pod for pod in found}

    async def wait_running(self, uids: Iterable[str], *, limit_s: float = 240) -> None:
        """Wait until all run; a pod that kubelet has failed is an error with its reason."""
        wanted = set(uids)
        states: dict[str, str] = {}

        async def running() -> bool:
            pods = await self.pods()
            states.clear()
            states.update({uid: state_of(pods.get(uid)) for uid in wanted})
            assert "Failed" not in {state.split(":")[0] for state in states.values()}, states
            return set(states.values()) == {"Running"}

        try:
            await until(running, what=f"{len(wanted)} pods run", limit_s=limit_s)
        except AssertionError as error:
            waiting = {uid: state for uid, state in states.items() if state != "Running"}
            raise AssertionError(f"{error}: {waiting}; agent: {self.agent.tail()}") from None
        await self.wait_reported(wanted)

    async def wait_reported(self, uids: Iterable[str]) -> None:
        """Wait until every container of the pods has written what it sees."""
        pods = await self.pods()
        silent = {
            (uid, container["name"])
            for uid in uids
            for kind in ("initContainers", "containers")
            for container in pods[uid]["spec"].get(kind, ())
        }

        async def all_written() -> bool:
            for uid, name in list(silent):
                if any(self.reports.glob(f"{uid}.{name}.*.seen")):
                    silent.remove((uid, name))
            return not silent

        await until(all_written, what="every container to write what it sees", limit_s=60)

    async def delete(self, pods: Iterable[Json]) -> None:
        """Delete pods, without waiting until they have stopped."""
        for pod in pods:
            metadata = pod["metadata"]
            await self.client.delete(
                PODS, metadata["name"], namespace=metadata["namespace"], uid=metadata["uid"]
            )

    async def wait_gone(self, pods: Iterable[Json]) -> None:
        uids = {pod["metadata"]["uid"] for pod in pods}

        async def gone() -> bool:
            return not uids & set(await self.pods())

        await until(gone, what=f"{len(uids)} pods are gone", limit_s=120)

    def sights(self, pod: Json) -> list[Sight]:
        """Return what every start of the pod's containers saw."""
        files = sorted(self.reports.glob(f"{pod['metadata']['uid']}.*.seen"))
        return [read_sight(file) for file in files]

    def shells(self, pod: Json) -> list[int]:
        """Return the first processes of the pod's containers."""
        mark = f"POD_UID={pod['metadata']['uid']}".encode()
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended
                environ = (process / "environ").read_bytes()
                command = (process / "cmdline").read_bytes()
                if mark in environ.split(b"\0") and command.startswith(b"/bin/sh"):
                    found.append(int(process.name))
        return found

    def expected(self, slices: Sequence[tuple[CardUuid, int]]) -> dict[str, str]:
        """Return the device files and numbers that a container with *slices* must see."""
        return {
            f"{MARK}{self._index(card)}": f"{_GPU_DEVICES:x}:{self.minors[card]:x}"
            for card, _ in slices
        }

    def _index(self, uuid: CardUuid) -> int:
        return next(card.index for card in self.cards if card.uuid == uuid)

    def log_events(self) -> list[Json]:
        """Return the lines of the agent's log, over all its starts."""
        found = []
        for line in self.agent.log.read_text(errors="replace").splitlines():
            with suppress(ValueError):  # a line cut short by SIGKILL
                found.append(json.loads(line))
        return found


@asynccontextmanager
async def a_real_node(  # noqa: PLR0913 - what a test may choose
    *,
    cards: Sequence[Card],
    cdi: bool = True,
    nri: bool = True,
    flags: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
    lay_out: Callable[[Path], Mapping[str, str]] = lambda _: {},
    before: Callable[[ControlPlane, KubeClient], Awaitable[None]] | None = None,
) -> AsyncIterator[RealNode]:
    """Start a control plane, a node and our agent on it, or skip the test with the reason.

    Args:
        cards: the simulated cards of the node, at most five.
        cdi: whether the runtime supports CDI.
        nri: whether the runtime has NRI on.
        flags: more settings of the agent.
        env: more variables of the agent.
        lay_out: makes files below the node's folder, and returns more settings of the agent.
        before: called with the control plane before kubelet and the agent start.
    """
    runtime = runtime_or_skip()
    with alone(), tempfile.TemporaryDirectory(prefix="fg-", ignore_cleanup_errors=True) as folder:
        root = Path(folder)
        async with AsyncExitStack() as stack:
            assets = find_assets(os.environ[ASSETS_ENV])
            api = await stack.enter_async_context(ControlPlane.start(assets, root / "api"))
            kubeconfig = api.kubeconfig(root / "kubeconfig")
            client = await stack.enter_async_context(connect(str(kubeconfig)))
            node = _lay_out(
                root,
                runtime,
                api,
                client,
                kubeconfig,
                cards=cards,
                cdi=cdi,
                nri=nri,
                flags={**(flags or {}), **lay_out(root)},
                env=env or {},
            )
            stack.push_async_callback(_end_all, node)
            if before is not None:
                await before(api, client)
            await _start(node, runtime)
            yield node


def runtime_or_skip() -> Runtime:
    """Return the runtime for a kubelet on this machine, or skip the test with what is missing.

    That is containerd 2 where there is one, or else Debian's.
    """
    assets = os.environ.get(ASSETS_ENV)
    if not assets or not (Path(assets) / "kubelet").is_file():
        pytest.skip(f"{ASSETS_ENV} names no folder with a kubelet")
    if os.geteuid() != 0:
        pytest.skip("a kubelet needs root")
    if any(_name_of(process) == "kubelet" for process in Path("/proc").glob("[0-9]*")):
        pytest.skip("a kubelet runs on this machine already, and would end our pods")
    try:
        return find_containerd2() if os.environ.get(CONTAINERD2_ENV) else find_runtime()
    except NoRuntimeError as error:
        pytest.skip(str(error))


def _name_of(process: Path) -> str:
    try:
        return (process / "comm").read_text().strip()
    except OSError:  # it has exited
        return ""


@contextmanager
def alone() -> Iterator[None]:
    """Hold the lock for the machine's only kubelet: two would end each other's pods."""
    with Path(tempfile.gettempdir(), "fracgpu-real-node.lock").open("w") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pytest.skip("another test runs a kubelet on this machine")
        yield


def _lay_out(  # noqa: PLR0913 - what a test may choose
    root: Path,
    runtime: Runtime,
    api: ControlPlane,
    client: KubeClient,
    kubeconfig: Path,
    *,
    cards: Sequence[Card],
    cdi: bool,
    nri: bool,
    flags: Mapping[str, str],
    env: Mapping[str, str],
) -> RealNode:
    for folder in ("dp", "cdi", "seen", "cni", "logs", "cards"):
        (root / folder).mkdir(exist_ok=True)
    (root / "cni" / "10-lo.conflist").write_text(
        '{"cniVersion":"0.4.0","name":"lo","plugins":[{"type":"loopback"}]}'
    )
    socket = root / "containerd.sock"
    config = root / "containerd.toml"
    config.write_text(
        containerd_config(
            root, socket=socket, runc=runtime.runc, cdi_dir=root / "cdi", cdi=cdi, nri=nri
        )
    )
    minors = {
        card.uuid: minor for card, minor in zip(cards, itertools.cycle(_MINORS), strict=False)
    }
    nodes = {card.uuid: [_card_node(root, card, minors[card.uuid])] for card in cards}
    write_cards_file(root / "cards.json", cards_document(cards, device_nodes=nodes))
    (root / "kubelet.yaml").write_text(json.dumps(kubelet_config(root, socket)))
    assets = Path(os.environ[ASSETS_ENV])
    agent_flags = {
        "node-name": NODE,
        "kubeconfig": str(kubeconfig),
        "cards": f"simulated:{root / 'cards.json'}",
        "telemetry-host": "127.0.0.1",
        "telemetry-port": "0",
        "device-plugins-dir": str(root / "dp"),
        "plugins-dir": str(root / "kubelet" / "plugins"),
        "plugins-registry-dir": str(root / "kubelet" / "plugins_registry"),
        "pod-resources-socket": str(root / "kubelet" / "pod-resources" / "kubelet.sock"),
        "cdi-dir": str(root / "cdi"),
        "vendor-cdi-dirs": str(root / "cdi"),
        "cri-socket": str(socket),
        "nri-socket": str(root / "nri.sock"),
        "host-dir": str(root / "host"),
        "kubelet-poll-s": "0.2",
        "survey-period-s": "1",
        "log-level": "debug",
        **flags,
    }
    return RealNode(
        root=root,
        api=api,
        client=client,
        cards=tuple(cards),
        containerd=Child(
            [runtime.containerd, "-c", config],
            log=root / "containerd.log",
            env={"PATH": f"{runtime.folder}:{os.environ['PATH']}"},
        ),
        kubelet=Child(
            [
                *("unshare", "--mount", "--propagation", "slave", "sh", "-c"),
                f'mount --bind "$1" {_PLUGINS} && shift && exec "$@"',
                *("sh", root / "dp", assets / "kubelet"),
                f"--config={root / 'kubelet.yaml'}",
                f"--kubeconfig={kubeconfig}",
                f"--hostname-override={NODE}",
                f"--root-dir={root / 'kubelet'}",
                f"--cert-dir={root / 'kubelet' / 'pki'}",
                f"--node-labels={names.SHARE_LABEL}=true",
                "--v=2",
            ],
            log=root / "kubelet.log",
        ),
        agent=Child(
            [sys.executable, "-m", "cli", "run", "deviceplugin"]
            + [word for name, value in agent_flags.items() for word in (f"--{name}", value)],
            log=root / "agent.log",
            env=env,
        ),
        containerd_socket=socket,
        minors=minors,
    )


def _card_node(root: Path, card: Card, minor: int) -> str:
    """Create a card's device file; a container sees it under a name with the card's index."""
    file = root / "cards" / f"card{card.index}"
    os.mknod(file, 0o666 | stat.S_IFCHR, os.makedev(_GPU_DEVICES, minor))
    return f"{MARK}{card.index}={file}"


async def _start(node: RealNode, runtime: Runtime) -> None:
    _PLUGINS.mkdir(parents=True, exist_ok=True)  # a place to mount over
    await node.containerd.start()
    await node.containerd.wait_socket(node.containerd_socket)
    import_image(runtime, socket=node.containerd_socket, workdir=node.root)
    await node.kubelet.start()
    await node.kubelet.wait_socket(node.root / "dp" / "kubelet.sock", limit_s=90)
    await node.agent.start()


async def _end_all(node: RealNode) -> None:
    await node.agent.kill()
    await node.kubelet.kill()
    await node.containerd.end()
    end_what_is_left(node.root, socket=node.containerd_socket)
