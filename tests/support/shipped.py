"""What a user installs, on a real cluster: the image of the Dockerfile, the manifests unchanged."""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from fracgpu import names
from simulator.envtest.control_plane import ASSETS_ENV
from tests.support.images import NoImageError, our_image, program_image
from tests.support.kubectl import DEPLOY
from tests.support.real_cluster import RealCluster, a_real_cluster, cluster_runtime_or_skip
from tests.support.real_runtime import IMAGE
from tests.support.waiting import until

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
