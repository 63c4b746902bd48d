"""The README's five commands and docs/getting-started.md, followed on a real kubelet."""

import sys
from pathlib import Path
from typing import Final

import pytest

from fracgpu import names
from fracgpu.state.assignment import read_assignment
from tests.support.documented import documented, run
from tests.support.helm import ROOT, SYSTEM, helm_or_skip
from tests.support.real_cluster import NODE, RealCluster
from tests.support.real_runtime import IMAGE
from tests.support.shipped import AGENT, ROLES, a_cluster_with_our_images

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]

GUIDE: Final = "docs/getting-started.md"
EXAMPLES: Final = "docs/examples"
# As simulatedCards.cards in the chart.
CARD_MIB: Final = 40_960


class Reader:
    """Somebody who types what a document says, with words of their own where it needs some."""

    def __init__(self, cluster: RealCluster, folder: Path) -> None:
        self._cluster = cluster
        self._folder = folder
        folder.mkdir()
        for file in (ROOT / EXAMPLES).iterdir():
            # The node can fetch nothing: it has one image of its own, with the same programs.
            text = file.read_text()
            assert "image: busybox:1.37" in text
            (folder / file.name).write_text(text.replace("busybox:1.37", IMAGE))

    async def types(self, *commands: str) -> str:
        """Run the commands one after the other; return what the last one prints."""
        said = ""
        for command in commands:
            # The node has the image by its plain name, as after an import.
            line = command.replace(" --set image.registry=registry.example.com/team", "")
            line = line.replace(EXAMPLES, str(self._folder))
            line = line.replace(".venv/bin/fracgpu", str(Path(sys.executable).with_name("fracgpu")))
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


async def test_the_readme_and_the_guide_lead_to_a_pod_with_its_share(tmp_path: Path) -> None:
    helm_or_skip()
    # Clone and push are followed in tests/tools/image/test_push.py.
    _, _, install, label, apply = documented("README.md", "use-it")
    async with a_cluster_with_our_images(tmp_path) as cluster:
        reader = Reader(cluster, tmp_path / "examples")
        assert [f"{install} --set simulatedCards.enabled=true", label, apply] == [
            documented(GUIDE, "install")[0],
            documented(GUIDE, "share")[0],
            documented(GUIDE, "run")[0],
        ]
        assert "successfully rolled out" in await reader.follows("install")
        await reader.follows("share")

        log = await reader.follows("run")

        assert f"{names.ENV_MEM_MIB}={CARD_MIB // 2}\n" in log
        await check_half(cluster)
        assert "default/half-a-card" in await reader.types(documented(GUIDE, "look")[0])
        assert "half-a-card" in await reader.follows("look")

        await reader.follows("wait")
        (explain,) = documented(GUIDE, "explain")
        # The shell's answer is 1, because the pod does not fit.
        told = await reader.types(f"{explain} || test $? = 1")
        assert "half-a-card" in told
        await reader.follows("make-room")
        two = await cluster.wait_pod("two-cards")
        (cards,) = read_assignment(two["metadata"]["annotations"][names.ASSIGNMENT]).values()
        assert [it.mib for it in cards] == [CARD_MIB, CARD_MIB]
        await reader.follows("clean")

        for command in documented("docs/operations.md", "after-a-restore"):
            await reader.types(command)
        for what in (*ROLES, AGENT):
            await cluster.wait_ready(what, namespace=SYSTEM, limit_s=30)
