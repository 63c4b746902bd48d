"""Releases of Kubernetes: read from versions and images, and which kube-scheduler suits a server.

kube-scheduler must not be newer than the API server, and at most one minor version older:
https://kubernetes.io/releases/version-skew-policy/#kube-controller-manager-kube-scheduler-and-cloud-controller-manager
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

_IMAGE: Final = "kube-scheduler"
_VERSION: Final = re.compile(r"v?(\d{1,4})\.(\d{1,4})(?:\D|$)", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class Release:
    """A minor release of Kubernetes."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


def release_of(text: str) -> Release | None:
    """Parse a version such as ``v1.36.2`` or ``v1.33.4-eks-1``; None for anything else."""
    found = _VERSION.match(text)
    return Release(int(found[1]), int(found[2])) if found else None


def kube_scheduler_of(pod: Mapping[str, Any]) -> Release | None:
    """Return the release of the pod's kube-scheduler, by its image's tag.

    None without such a container, or if the tag has no version (only a digest, or ``latest``).
    """
    for container in pod["spec"]["containers"]:
        name, tag = image_name_and_tag(str(container["image"]))
        if name == _IMAGE:
            return release_of(tag)
    return None


def image_name_and_tag(image: str) -> tuple[str, str]:
    """Return the last part of an image's name, and its tag, which is empty if it has none."""
    named, _, _ = image.partition("@")
    name, _, tag = named.rpartition("/")[2].partition(":")
    return name, tag


def problem_of(scheduler: Release, server: Release) -> str | None:
    """Return why this kube-scheduler must not run with this API server, or None."""
    if scheduler <= server:
        return None
    return (
        f"kube-scheduler is of {scheduler}, newer than the API server, {server}; "
        f"want an image of {server} (images: newTag in your kustomization.yaml)"
    )
