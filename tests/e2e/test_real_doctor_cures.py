"""The cures of ``fracgpu doctor`` are commands that cure, and leave what is Helm's to Helm."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from cli.commands.doctor import main
from tests.e2e.test_real_chart import without_wait
from tests.support.documented import documented, run
from tests.support.helm import SYSTEM, helm_or_skip
from tests.support.kubectl import Kubectl
from tests.support.real_apiserver import real_api_server

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

GUIDE = "docs/install.md"
CHANGED_BY_HAND = (
    (
        "policies",
        ("patch", "validatingadmissionpolicybinding", "fracgpu-moves", "--type=merge", "-p",
         '{"spec": {"validationActions": ["Audit"]}}'),
    ),
    ("policies", ("delete", "validatingadmissionpolicy", "fracgpu-nodes")),
    (
        "configuration",
        ("patch", "configmap", "fracgpu-config", "-p", '{"data": {"rebalancer": "hotRatio: 9"}}'),
    ),
    ("replicas", ("scale", "deployment", "fracgpu-webhook", "--replicas=0")),
    (
        "definition",
        ("delete", "customresourcedefinition", "moves.fracgpu.io"),
    ),
)  # fmt: skip


async def found(
    check: str, kubeconfig: Path, capsys: pytest.CaptureFixture[str]
) -> list[dict[str, Any]]:
    """Return what a check finds; no pod runs here, so replicas are not available."""
    words = ["--kubeconfig", str(kubeconfig), "-o", "json", "--no-probe", "--check", check]
    capsys.readouterr()
    await asyncio.to_thread(main, words)
    (answer,) = json.loads(capsys.readouterr().out)["checks"]
    return [each for each in answer["findings"] if " available" not in each["seen"]]


async def test_each_cure_of_an_installation_of_helms_cures_and_the_next_upgrade_succeeds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    helm_or_skip()
    async with real_api_server(tmp_path) as api:
        admin = api.kubeconfig(tmp_path / "kubeconfig")
        kubectl = Kubectl.find(admin)
        install, _ = documented(GUIDE, "helm-install")
        await run(without_wait(install), kubeconfig=admin)

        for check, by_hand in CHANGED_BY_HAND:
            assert await found(check, admin, capsys) == [], check
            await kubectl("-n", SYSTEM, *by_hand)
            (finding,) = await found(check, admin, capsys)
            cure = finding["cure"].partition(" (docs/")[0]
            assert cure.startswith("helm upgrade fracgpu charts/fracgpu "), finding
            await run(cure.replace("FIELD=VALUE", "hotRatio=0.9"), kubeconfig=admin)
            assert await found(check, admin, capsys) == [], check

        (upgrade,) = documented(GUIDE, "helm-upgrade")
        await run(upgrade, kubeconfig=admin)
        config = await kubectl("-n", SYSTEM, "get", "configmap", "fracgpu-config", "-o", "yaml")
        assert "hotRatio: 0.9" in config


async def test_neither_helm_nor_kustomize_takes_over_what_the_other_has_installed(
    tmp_path: Path,
) -> None:
    helm_or_skip()
    install, _ = documented(GUIDE, "helm-install")
    apply, _ = documented(GUIDE, "kustomize-install")
    async with real_api_server(tmp_path) as api:
        await api.start_controller_manager()
        admin = api.kubeconfig(tmp_path / "kubeconfig")
        await run(without_wait(install), kubeconfig=admin)
        with pytest.raises(AssertionError, match='conflict with "helm"'):
            await run(apply, kubeconfig=admin, words={"FOLDER": "deploy"})

        await run("helm uninstall fracgpu -n fracgpu-system --no-hooks", kubeconfig=admin)
        await run("fracgpu uninstall --yes --wait-s 60", kubeconfig=admin)
        await run(apply, kubeconfig=admin, words={"FOLDER": "deploy"})
        with pytest.raises(AssertionError, match="invalid ownership metadata"):
            await run(without_wait(install), kubeconfig=admin)
