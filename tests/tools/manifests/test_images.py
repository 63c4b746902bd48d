"""``make images``: what an air-gapped site has to mirror."""

import pytest

from tests.deploy.test_certificates import built
from tools.manifests.images import images, main


def test_the_list_is_what_the_pods_run() -> None:
    run = {
        container["image"]
        for folder in ("deploy", "overlays/cluster-scheduler/prepare")
        for body in built(folder)
        if body["kind"] in ("Deployment", "DaemonSet")
        for container in body["spec"]["template"]["spec"]["containers"]
    }

    assert set(images()) == run


def test_kube_scheduler_is_of_the_version_that_is_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--kubernetes", "1.33.5"]) == 0

    assert "registry.k8s.io/kube-scheduler:v1.33.5\n" in capsys.readouterr().out
