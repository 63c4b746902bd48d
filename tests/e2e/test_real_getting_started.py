"""The README's five commands and docs/getting-started.md, followed on a real kubelet."""

import json
import os
import sys
from pathlib import Path
from typing import Final

import pytest

from fracgpu import names
from fracgpu.state.allocation import read_assignment
from simulator.envtest.control_plane import ASSETS_ENV
from tests.support.documented import documented, run
from tests.support.helm import SYSTEM, helm_or_skip
from tests.support.images import program_image
from tests.support.real_cluster import (
    AGENT,
    NODE,
    ROLES,
    RealCluster,
    a_cluster_with_our_images,
    a_real_cluster,
    cluster_runtime_or_skip,
    image_of,
)
from tests.support.real_runtime import IMAGE
from tests.support.registry import Registry
from tests.support.waiting import until
from tests.tools.image.test_push import cloned, needs, ran, with_words

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]

GUIDE: Final = "docs/getting-started.md"
# As simulatedCards.cards in the chart.
CARD_MIB: Final = 40_960
# An environment of its own, and two architectures with Debian's packages.
PUSH_LIMIT_S: Final = 1200.0
BUSYBOX: Final = "docker.io/library/busybox:1.37"


class Reader:
    """Somebody who types what a document says, with words of their own where it needs some."""

    def __init__(self, cluster: RealCluster) -> None:
        self._cluster = cluster

    async def types(self, *commands: str) -> str:
        """Run the commands one after the other; return what the last one prints."""
        said = ""
        for command in commands:
            line = command.replace(
                ".venv/bin/fracgpu", str(Path(sys.executable).with_name("fracgpu"))
            )
            said = await run(
                line, kubeconfig=self._cluster.kubectl.kubeconfig, words={"NAME": NODE}
            )
        return said

    async def follows(self, block: str) -> str:
        return await self.types(*documented(GUIDE, block))


async def check_half(cluster: RealCluster) -> None:
    """Check that the pod has half of the one card that it was assigned."""
    pod = await cluster.wait_pod("half-a-card")
    ((assigned,),) = read_assignment(pod["metadata"]["annotations"][names.ASSIGNMENT]).values()
    assert assigned.mib == CARD_MIB // 2
    log = cluster.logs("default", "half-a-card")["train"]
    assert f"{names.ENV_VISIBLE_DEVICES}={assigned.card}\n" in log
    assert f"{names.ENV_MEM_MIB}={CARD_MIB // 2}\n" in log
    assert len([line for line in log.splitlines() if "/dev/nvidia" in line]) == 1


async def test_the_readmes_five_commands_lead_to_a_pod_with_half_a_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    helm_or_skip()
    cluster_runtime_or_skip()
    needs("git", "make", "skopeo", "mmdebstrap")
    _, push, install, share, apply = documented("README.md", "use-it")
    # kube-scheduler's image comes from registry.k8s.io, which the node does not reach.
    program = Path(os.environ[ASSETS_ENV]) / "kube-scheduler"
    theirs = program_image(image_of("kube-scheduler"), program, tmp_path / "kube-scheduler.tar")
    # The reader's own words: REPOSITORY is this checkout, the registry is the test's own on
    # loopback (so without a certificate, which skopeo has to be told), NAME is the node.
    clone = await cloned(tmp_path)
    registry = Registry()
    monkeypatch.setenv("SKOPEO", "--dest-tls-verify=false")
    async with registry.serve():
        own = {"registry.example.com": registry.address}
        await ran(with_words(push, own), at=clone, limit_s=PUSH_LIMIT_S)

    async with (
        a_real_cluster(images=[theirs]) as cluster,
        registry.serve(port=registry.port),  # the same, where the node is
    ):
        # The node reaches no registry but the test's own.
        cluster.name_image(IMAGE, BUSYBOX)
        admin = cluster.kubectl.kubeconfig
        # Without a GPU, as the README says.
        install = f"{with_words(install, own)} --set simulatedCards.enabled=true"
        await run(install, kubeconfig=admin, at=clone)
        await run(share, kubeconfig=admin, words={"NAME": NODE}, at=clone)
        await run(apply, kubeconfig=admin, at=clone)

        await check_half(cluster)
        await check_nothing_was_restarted(cluster)
        for pod in await cluster.pods(SYSTEM):
            for container in pod["spec"]["containers"]:
                assert container["image"] in (
                    f"{registry.address}/team/fracgpu:0.1.0",
                    image_of("kube-scheduler"),
                )


async def check_nothing_was_restarted(cluster: RealCluster) -> None:
    """Check that the pods are those that the installation made, in their first life.

    certs is ready once it has done all that an installation needs, a restart included.
    """

    async def all_ready() -> bool:
        statuses = [
            status
            for pod in await cluster.pods(SYSTEM)
            for status in pod["status"]["containerStatuses"]
        ]
        assert [status for status in statuses if status["restartCount"]] == []
        return all(status["ready"] for status in statuses)

    # The first pod may run before kubelet has asked the agent whether it is ready.
    await until(all_ready, what="every role is ready", limit_s=60)
    for role in ROLES:
        found = json.loads(await cluster.kubectl("get", role, "-n", SYSTEM, "-o", "json"))
        notes = found["metadata"]["annotations"]
        assert notes["deployment.kubernetes.io/revision"] == "1", found


async def test_the_guide_leads_to_a_pod_with_its_share(tmp_path: Path) -> None:
    helm_or_skip()
    _, _, install, share, apply = documented("README.md", "use-it")
    async with a_cluster_with_our_images(tmp_path) as cluster:
        cluster.name_image(IMAGE, BUSYBOX)
        ours = image_of("fracgpu")
        cluster.name_image(f"docker.io/library/{ours}", f"registry.example.com/team/{ours}")
        reader = Reader(cluster)
        assert [f"{install} --set simulatedCards.enabled=true", share, apply] == [
            documented(GUIDE, "install")[0],
            documented(GUIDE, "share")[0],
            documented(GUIDE, "run")[0],
        ]
        await reader.follows("install")
        await reader.follows("share")

        log = await reader.follows("run")

        assert f"{names.ENV_MEM_MIB}={CARD_MIB // 2}\n" in log
        await check_half(cluster)
        assert "default/half-a-card" in await reader.types(documented(GUIDE, "look")[0])
        assert "half-a-card" in await reader.follows("look")

        await reader.follows("wait")
        (explain,) = documented(GUIDE, "explain")
        # The shell's answer is 1, because the pod does not fit.
        output = await reader.types(f"{explain} || test $? = 1")
        assert "half-a-card" in output
        await reader.follows("make-room")
        two = await cluster.wait_pod("two-cards")
        (cards,) = read_assignment(two["metadata"]["annotations"][names.ASSIGNMENT]).values()
        assert [it.mib for it in cards] == [CARD_MIB, CARD_MIB]
        await reader.follows("clean")

        for command in documented("docs/operations.md", "after-a-restore"):
            await reader.types(command)
        for what in (*ROLES, AGENT):
            await cluster.wait_ready(what, namespace=SYSTEM, limit_s=30)
