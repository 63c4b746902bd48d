"""Releases of Kubernetes in versions and images."""

from typing import Any

import pytest

from fracgpu.k8s.release import Release, kube_scheduler_of, problem_of, release_of


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("v1.36.2", Release(1, 36)),
        ("v1.33.4-eks-1a2b3c", Release(1, 33)),
        ("1.30", Release(1, 30)),
        ("v1.31+", Release(1, 31)),
        ("latest", None),
        ("", None),
        ("v1.36x", Release(1, 36)),
        ("v12345.1", None),
    ],
)
def test_a_release_is_read_from_a_version(text: str, release: Release | None) -> None:
    assert release_of(text) == release


def a_pod(*images: str) -> dict[str, Any]:
    return {
        "spec": {
            "containers": [{"name": f"c{n}", "image": image} for n, image in enumerate(images)]
        }
    }


@pytest.mark.parametrize(
    ("images", "release"),
    [
        (("fracgpu:0.1.0", "registry.k8s.io/kube-scheduler:v1.36.2"), Release(1, 36)),
        (("mirror:5000/k8s/kube-scheduler:v1.30.9@sha256:abc",), Release(1, 30)),
        (("registry.k8s.io/kube-scheduler@sha256:abc",), None),
        (("kube-scheduler",), None),
        (("fracgpu:0.1.0",), None),
    ],
)
def test_the_release_of_kube_scheduler_is_in_its_images_tag(
    images: tuple[str, ...], release: Release | None
) -> None:
    assert kube_scheduler_of(a_pod(*images)) == release


@pytest.mark.parametrize(
    ("scheduler", "server", "fits"),
    [(36, 36, True), (35, 36, True), (30, 36, True), (36, 35, False)],
)
def test_kube_scheduler_is_never_newer_than_the_api_server(
    scheduler: int, server: int, *, fits: bool
) -> None:
    problem = problem_of(Release(1, scheduler), Release(1, server))

    assert (problem is None) is fits
    if problem is not None:
        assert "is of 1.36, newer than the API server, 1.35; want an image of 1.35" in problem
