"""Pods for a real node: their containers write to a file which cards they see."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fracgpu import names
from tests.support.real_runtime import IMAGE

Json = dict[str, Any]

MARK: Final = "/dev/fake-card"
# Each container writes what it sees to a file of its own, atomically.
_TELL: Final = (
    'trap "exit 0" TERM; f=/seen/$POD_UID.$NAME.$$.$(cat /proc/uptime | tr -c "0-9" "_"); '
    '{ for d in /dev/fake-card*; do stat -c "device %n %t:%T" $d; done; '
    'for v in $(env); do echo "env $v"; done; '
    'for v in $(cat /run/fracgpu/env); do echo "told $v"; done; '
    'for v in $(cat $CUDA_MPS_PIPE_DIRECTORY/control </dev/null); do echo "mps $v"; done; '
    "} >$f.new 2>&1; mv $f.new $f.seen; "
)
_STAY: Final = "sleep 3600 & wait"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What one start of a container saw of cards.

    Attributes:
        devices: device numbers by path.
        told: the lines of the file that replaces variables where the runtime has no CDI.
        mps: the card whose MPS daemon's pipes are mounted.
    """

    container: str
    devices: Mapping[str, str]
    env: Mapping[str, str]
    told: tuple[str, ...] = ()
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
    told: list[str] = []
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
            told.append(rest)
        elif kind == "mps":
            mps.append(rest)
    return Sight(
        container=file.name.split(".")[1],
        devices=devices,
        env=env,
        told=tuple(told),
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


def a_real_pod(
    containers: Sequence[Json], *, seen: Path, inits: Sequence[Json] = (), name: str = ""
) -> Json:
    """Return a pod of *containers* that needs no network of its own and ends quickly."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name or f"train-{next(_names)}", "namespace": "default"},
        "spec": {
            "schedulerName": "by-the-test",
            "hostNetwork": True,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 1,
            "initContainers": list(inits),
            "containers": list(containers),
            "volumes": [{"name": "seen", "hostPath": {"path": str(seen)}}],
        },
    }
