"""Checks that the API server supports the version of the kube-scheduler in our pod.

kube-scheduler must not be newer than the API server, and at most one minor version older:
https://kubernetes.io/releases/version-skew-policy/#kube-controller-manager-kube-scheduler-and-cloud-controller-manager
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import structlog

from kube.errors import KubeError
from kube.kinds import PODS, Kind
from process.clock import Clock

log = structlog.get_logger()

_IMAGE: Final = "kube-scheduler"
_VERSION: Final = re.compile(r"v?(\d{1,4})\.(\d{1,4})(?:\D|$)", re.ASCII)
_OLDEST: Final = -1
_LOOK_EVERY_S: Final = 3600.0
_RETRY_S: Final = 30.0


@dataclass(frozen=True, slots=True, order=True)
class Release:
    """A minor release of Kubernetes."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


class VersionClient(Protocol):
    """What the check needs of ``kube.client.KubeClient``."""

    async def get_path(self, path: str) -> bytes: ...

    async def get_object(
        self, kind: Kind, name: str, *, namespace: str | None = None
    ) -> dict[str, Any]: ...


def release_of(text: str) -> Release | None:
    """Parse a version such as ``v1.36.2`` or ``v1.33.4-eks-1``; None for anything else."""
    found = _VERSION.match(text)
    return Release(int(found[1]), int(found[2])) if found else None


def kube_scheduler_of(pod: Mapping[str, Any]) -> Release | None:
    """Return the release of the pod's kube-scheduler, by its image's tag.

    None without such a container, or if the tag has no version (only a digest, or ``latest``).
    """
    for container in pod["spec"]["containers"]:
        image, _, _ = str(container["image"]).partition("@")
        name, _, tag = image.rpartition("/")[2].partition(":")
        if name == _IMAGE:
            return release_of(tag)
    return None


def problem_of(scheduler: Release, server: Release) -> str | None:
    """Return why this kube-scheduler must not run with this API server, or None."""
    if scheduler <= server:
        return None
    return (
        f"kube-scheduler is of {scheduler}, newer than the API server, {server}; "
        f"want an image of {server} (images: newTag in your kustomization.yaml)"
    )


class VersionSkewCheck:
    """Compares the versions when this replica starts, and then every hour."""

    def __init__(
        self,
        client: VersionClient,
        clock: Clock,
        *,
        namespace: str,
        pod: str,
        on_known: Callable[[int], None],
    ) -> None:
        self._client = client
        self._clock = clock
        self._namespace = namespace
        self._pod = pod
        self._on_known = on_known
        self._problem: str | None = None

    def problem(self) -> str | None:
        """Return why kube-scheduler is too new; None if it is not, or if that is unknown."""
        return self._problem

    async def run(self) -> None:
        """Compare periodically until cancelled."""
        while True:
            pause_s = _LOOK_EVERY_S
            try:
                await self._look()
            except KubeError as error:
                log.warning("versions_not_read", error=str(error))
                pause_s = _RETRY_S
            await self._clock.sleep(pause_s)

    async def _look(self) -> None:
        server = release_of(str(json.loads(await self._client.get_path("/version"))["gitVersion"]))
        pod = await self._client.get_object(PODS, self._pod, namespace=self._namespace)
        scheduler = kube_scheduler_of(pod)
        if server is None or scheduler is None:
            log.info("kube_scheduler_version_unknown", pod=self._pod)
            return
        self._problem = problem_of(scheduler, server)
        newer_by = scheduler.minor - server.minor
        self._on_known(newer_by)
        if self._problem is not None:
            log.error("kube_scheduler_too_new", reason=self._problem)
        elif newer_by < _OLDEST:
            log.warning("kube_scheduler_too_old", kube_scheduler=str(scheduler), server=str(server))
