"""docs/install.md, and the scrape job of docs/prometheus.md: what a reader copies works."""

import re
import shutil
from pathlib import Path

import pytest
import yaml

from tests.deploy.test_certificates import built
from tests.support.documented import documented, documented_file
from tests.support.helm import CHART, ROOT, SYSTEM, helm
from tests.support.monitoring import scrape_jobs, with_targets_of
from tests.support.promtool import RULES, promtool
from tools.manifests.images import images

GUIDE = "docs/install.md"
TEXT = (ROOT / GUIDE).read_text()
VALUE = re.compile(r"`([a-zA-Z]+(?:[.\[][\w.\]\[]+)?=[^`]+)`")
COMPLETE = {
    "prometheus.url=...": "prometheus.url=http://prometheus:9090",
    "certificates.issuer.kind=ClusterIssuer": (
        "certificates.issuer.kind=ClusterIssuer,certificates.issuer.name=x,"
        "certificates.mode=cert-manager"
    ),
    "certificates.issuer.name=NAME": (
        "certificates.issuer.kind=ClusterIssuer,certificates.issuer.name=x,"
        "certificates.mode=cert-manager"
    ),
    "deviceplugin.kubeletFolder=...": "deviceplugin.kubeletFolder=/var/lib/k0s/kubelet",
}


def values() -> list[str]:
    """Return each value that the guide sets, as it is given to --set."""
    found = dict.fromkeys(VALUE.findall(TEXT))
    # GKE's own label is none of the chart's values, nor are the variables of make.
    return [
        value
        for value in found
        if not value.startswith("gke-") and not value.partition("=")[0].isupper()
    ]


def test_the_guide_sets_values() -> None:
    assert len(values()) >= 15


@pytest.mark.parametrize("value", values())
def test_each_value_of_the_guide_is_one_of_the_chart(value: str) -> None:
    chosen = COMPLETE.get(value, value)

    where = (f"--namespace={SYSTEM}", "--kube-version=1.36.0")  # the oldest that takes them all
    done = helm("template", "x", str(CHART), *where, f"--set={chosen}")

    assert done.ok, done.error


def test_the_overlay_of_the_guide_runs_the_images_that_it_names() -> None:
    text = documented_file(GUIDE, "kustomization.yaml")
    folder = ROOT / "build" / "guide"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        written = text.replace("../deploy", "../../deploy")
        (folder / "kustomization.yaml").write_text(written.replace("# components", "components"))
        objects = built(str(folder.relative_to(ROOT)))
    finally:
        shutil.rmtree(folder)

    found = {
        container["image"]
        for body in objects
        if body["kind"] in ("Deployment", "DaemonSet")
        for container in body["spec"]["template"]["spec"]["containers"]
    }
    named = yaml.safe_load(text)["images"]
    assert found == {f"{image['newName']}:{image['newTag']}" if "newName" in image
                     else f"{image['name']}:{image['newTag']}" for image in named}  # fmt: skip
    assert {"Certificate", "PodMonitor"} <= {body["kind"] for body in objects}


def test_the_image_that_the_guide_builds_is_the_one_that_is_run() -> None:
    (ours, _) = images()
    (pushed,) = re.findall(r"skopeo copy .* docker://(\S+)", TEXT)
    (built_by_docker,) = re.findall(r"docker build -t (\S+)", TEXT)

    assert pushed.endswith(f"/{ours}")
    assert built_by_docker == pushed
    assert f"build/image/{ours.replace(':', '-')}.oci.tar" in TEXT
    (install, _) = documented(GUIDE, "helm-install")
    assert f"--set image.registry={Path(pushed).parent}" in install


def test_promtool_accepts_the_scrape_job_of_the_guide_beside_our_rules(tmp_path: Path) -> None:
    written = yaml.safe_load(documented_file("docs/prometheus.md", "prometheus.yml"))
    # Debian's is built without discovery in Kubernetes.
    jobs = [with_targets_of(job, tmp_path / "targets.json") for job in scrape_jobs()]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump({**written, "scrape_configs": jobs}))
    shutil.copy(RULES, tmp_path)

    done = promtool("check", "config", str(tmp_path / "prometheus.yml"))

    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 rule files found" in done.stdout
