"""What a container runtime says about pods and containers, and what we may answer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol


class Refused(Exception):  # noqa: N818 - an answer, not a mistake
    """The container must not start; the text becomes the runtime's reason, which kubelet shows."""


class ContainerState(Enum):
    """How far a container is, as the runtime sees it; new names of later runtimes are UNKNOWN."""

    UNKNOWN = 0
    CREATED = 1
    PAUSED = 2
    RUNNING = 3
    STOPPED = 4


class HookKind(Enum):
    """When a hook of the OCI runtime runs; the value is the hook's name in an OCI spec."""

    PRESTART = "prestart"
    CREATE_RUNTIME = "createRuntime"
    CREATE_CONTAINER = "createContainer"
    START_CONTAINER = "startContainer"
    POSTSTART = "poststart"
    POSTSTOP = "poststop"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSandbox:
    """A pod on this node. What it says is from when the sandbox was made, never newer."""

    id: str
    uid: str
    name: str
    namespace: str
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    cgroup_parent: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """One mount of a container."""

    destination: str
    source: str
    type: str = "bind"
    options: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device node in a container, with its rule in the device cgroup."""

    path: str
    major: int
    minor: int
    type: str = "c"
    mode: int | None = None
    uid: int | None = None
    gid: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """A program that the OCI runtime runs on the host; *args* begin with the program's name."""

    path: str
    args: Sequence[str] = ()
    env: Sequence[str] = ()
    timeout_s: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A container, whole before it is created: *env* are the lines ``NAME=value``."""

    id: str
    sandbox_id: str
    name: str
    state: ContainerState = ContainerState.UNKNOWN
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    env: Sequence[str] = ()
    mounts: Sequence[Mount] = ()
    devices: Sequence[Device] = ()
    cdi_devices: Sequence[str] = ()
    """Only from containerd with NRI 0.10; others just put them into the other fields."""
    cgroups_path: str = ""
    """As in the OCI spec: ``slice:prefix:name`` with systemd's driver, else a path."""
    pid: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Adjustment:
    """What a container gets beyond its spec. Each entry replaces the one of the same key.

    The keys are a mount's destination, a device's path and a variable's name. Nothing can be
    removed: runtimes with NRI 0.6 lose removals of mounts, so a mount that must go is replaced.
    """

    mounts: Sequence[Mount] = ()
    devices: Sequence[Device] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    hooks: Mapping[HookKind, Sequence[Hook]] = field(default_factory=dict)
    unified: Mapping[str, str] = field(default_factory=dict)
    """Keys of cgroup v2, such as ``memory.high``."""


Unified = Mapping[str, Mapping[str, str]]
"""Keys of cgroup v2 by container id."""


class Handler(Protocol):
    """Decides about containers, on the plugin's thread and from memory.

    The runtime creates no other container meanwhile, so an answer takes less than 50 ms. An
    exception other than ``Refused`` is a mistake of ours: the start fails, then the process ends.
    """

    def synchronize(self, pods: Sequence[PodSandbox], containers: Sequence[Container]) -> Unified:
        """Learn all that there is, after each connection; return what to set on running ones."""
        ...

    def create_container(self, pod: PodSandbox, container: Container) -> Adjustment:
        """Return what the container gets.

        Raises:
            Refused: it must not be created.
        """
        ...

    def start_container(self, pod: PodSandbox, container: Container) -> None:
        """Act while the container and its cgroup exist and its first process does not run yet.

        Raises:
            Refused: it must not start.
        """
        ...

    def stop_container(self, pod: PodSandbox, container: Container) -> None:
        """Act after the container's last process has ended; its cgroup exists at most a moment."""
        ...

    def remove_container(self, pod: PodSandbox, container: Container) -> None:
        """Forget a container that is gone; those that went while we were away are not told."""
        ...


class Connection(Enum):
    """Whether the runtime asks us before it creates a container, and if not, why."""

    CONNECTED = "connected"
    CONNECTING = "connecting"
    """There is a runtime, which has not listed its containers yet."""
    NO_SOCKET = "no-socket"
    """A runtime older than NRI, or one with NRI switched off."""
    NO_LISTENER = "no-listener"
    """The socket is left from a runtime that is away, or whose NRI was switched off since."""
    REFUSED = "refused"
    """The runtime answered, and does not want this plugin."""
    SILENT = "silent"
    """The runtime took the connection and then said nothing, or stopped within a message."""
    CLOSED = "closed"
    """The runtime closed the connection, as when it restarts."""
    BROKEN = "broken"
    """What arrived is not NRI, or ended within a message."""
    LATE = "late"
    """We answered after the runtime's limit, so it went on without us."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The state of the connection; *problem* is a sentence for people, None while connected."""

    connection: Connection
    problem: str | None = None
    runtime_name: str = ""
    """The runtime that was connected last; empty before the first one."""
    runtime_version: str = ""


class RuntimeUnavailable(Exception):  # noqa: N818 - the runtime's state, not a mistake
    """The runtime is not connected, or did not answer."""


OnStatus = Callable[[Status], None]
"""Called with each change of the status."""
