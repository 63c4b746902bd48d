"""The cells of a pod in a table.

Source: k8s.io/kubernetes pkg/printers/internalversion/printers.go (printPod), without containers
that are restartable init containers, which the simulated kubelet does not run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from fracgpu.k8s.pod import has_ended

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from simulator.objects import Json

_NONE: Final = "<none>"


def pod_cells(pod: Json, *, since: Callable[[str | None], str]) -> Sequence[Any]:
    """Return name, ready, status, restarts, IP, node, nominated node and readiness gates.

    Args:
        pod: the pod.
        since: shows how long ago a time was.
    """
    status = pod.get("status") or {}
    containers = status.get("containerStatuses") or ()
    ready = sum(bool(one.get("ready")) and "running" in _state(one) for one in containers)
    addresses: Sequence[Json] = status.get("podIPs") or ({},)
    return (
        pod["metadata"]["name"],
        f"{ready}/{len(pod['spec']['containers'])}",
        _reason(pod, status),
        _restarts(containers, since),
        addresses[0].get("ip") or _NONE,
        pod["spec"].get("nodeName") or _NONE,
        status.get("nominatedNodeName") or _NONE,
        _gates(pod["spec"], status),
    )


def _state(container: Json) -> Json:
    state: Json = container.get("state") or {}
    return state


def _reason(pod: Json, status: Json) -> str:
    phase = status.get("phase", "")
    reason: str = status.get("reason") or phase
    if any(
        one["type"] == "PodScheduled" and one.get("reason") == "SchedulingGated"
        for one in status.get("conditions") or ()
    ):
        reason = "SchedulingGated"
    begun = _init_reason(pod, status)
    reason = begun or _container_reason(status, reason)
    if pod["metadata"].get("deletionTimestamp") and not has_ended(phase):
        reason = "Unknown" if status.get("reason") == "NodeLost" else "Terminating"
    return reason


def _init_reason(pod: Json, status: Json) -> str:
    """Return the reason of the first init container that has not succeeded, or ''."""
    for position, one in enumerate(status.get("initContainerStatuses") or ()):
        state = _state(one)
        ended, waiting = state.get("terminated"), (state.get("waiting") or {}).get("reason")
        if ended is not None and ended.get("exitCode") == 0:
            continue
        if ended is not None:
            return f"Init:{_ended_reason(ended)}"
        if waiting and waiting != "PodInitializing":
            return f"Init:{waiting}"
        return f"Init:{position}/{len(pod['spec']['initContainers'])}"
    return ""


def _container_reason(status: Json, reason: str) -> str:
    """Return the reason of the first container that waits or has ended; else *reason*."""
    runs, failed = False, ""
    for one in reversed(status.get("containerStatuses") or ()):
        state = _state(one)
        ended = state.get("terminated")
        if (state.get("waiting") or {}).get("reason"):
            reason = state["waiting"]["reason"]
        elif ended is not None:
            reason = _ended_reason(ended)
            failed = reason if ended.get("exitCode") else failed
        elif one.get("ready") and "running" in state:
            runs = True
    if reason != "Completed":
        return reason
    if runs:
        return "Running" if _is_ready(status) else failed or "NotReady"
    return failed or reason


def _ended_reason(ended: Json) -> str:
    if ended.get("reason"):
        return str(ended["reason"])
    if ended.get("signal"):
        return f"Signal:{ended['signal']}"
    return f"ExitCode:{ended.get('exitCode', 0)}"


def _is_ready(status: Json) -> bool:
    return _holds(status, "Ready")


def _holds(status: Json, kind: str) -> bool:
    return any(
        one["type"] == kind and one["status"] == "True" for one in status.get("conditions") or ()
    )


def _restarts(containers: Sequence[Json], since: Callable[[str | None], str]) -> str:
    count = sum(one.get("restartCount", 0) for one in containers)
    times = [
        ((one.get("lastState") or {}).get("terminated") or {}).get("finishedAt") or ""
        for one in containers
    ]
    last = max(times, default="")
    return f"{count} ({since(last)} ago)" if count and last else str(count)


def _gates(spec: Json, status: Json) -> str:
    gates = spec.get("readinessGates") or ()
    held = sum(_holds(status, gate["conditionType"]) for gate in gates)
    return f"{held}/{len(gates)}" if gates else _NONE
