"""Checks that the API server supports the version of the kube-scheduler in our pod.

kube-scheduler must not be newer than the API server, and at most one minor version older:
https://kubernetes.io/releases/version-skew-policy/#kube-controller-manager-kube-scheduler-and-cloud-controller-manager
"""

import json
from collections.abc import Callable
from typing import Any, Final, Protocol

import structlog

from fracgpu.k8s.release import kube_scheduler_of, problem_of, release_of
from kube.errors import KubeError
from kube.kinds import PODS, Kind
from process.clock import Clock

log = structlog.get_logger()

_OLDEST: Final = -1
_LOOK_EVERY_S: Final = 3600.0
_RETRY_S: Final = 30.0


class VersionClient(Protocol):
    """What the check needs of ``kube.client.KubeClient``."""

    async def get_path(self, path: str) -> bytes: ...

    async def get_object(
        self, kind: Kind, name: str, *, namespace: str | None = None
    ) -> dict[str, Any]: ...


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
