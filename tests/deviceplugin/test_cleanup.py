"""At shutdown the agent removes everything of its own, if the node no longer shares."""

from pathlib import Path
from typing import Any

from deviceplugin.cleanup import NodeCleanup
from deviceplugin.container.cdi import SHARED, CdiFolder, CdiSpec, device_name
from fracgpu import names
from kube.client import KubeClient
from kube.errors import Unavailable
from kube.events import EventLevel, EventRecorder, Regarding
from kube.kinds import Kind
from tests.deviceplugin.builders import NODE, a_pod

Json = dict[str, Any]

S1 = device_name({"s1"})


class FakeNode(KubeClient, EventRecorder):
    """A node that carries our marks, and the patches to it."""

    def __init__(self, *, share: str | None) -> None:
        labels = {names.DRIVER_LABEL: "570"} | ({names.SHARE_LABEL: share} if share else {})
        notes = {names.NODE_CARDS: "[]", names.NODE_OUT_OF_SERVICE: "GPU-a"}
        self.body: Json = {
            "metadata": {"name": NODE, "labels": labels, "annotations": notes},
            "status": {
                "capacity": {names.GPU_MEM: "8000", names.GPU_SLOT: "32"},
                "conditions": [{"type": names.SHARING_CONDITION}],
            },
        }
        self.down = False
        self.writes: list[Json] = []
        self.events: list[tuple[str, str]] = []

    async def get_object(self, kind: Kind, name: str, **_: Any) -> Json:
        if self.down:
            raise Unavailable(verb="GET", path="/", status=None, reason="NoAnswer", message="gone")
        assert (kind.kind, name) == ("Node", NODE)
        return self.body

    async def patch(self, kind: Kind, name: str, patch: Any, **_: Any) -> Json:
        self.writes.append(dict(patch))
        return {}

    async def emit(
        self, regarding: Regarding, *, reason: str, note: str, level: EventLevel = EventLevel.NORMAL
    ) -> None:
        self.events.append((reason, note))


class Rig:
    """A node's files as an agent leaves them."""

    def __init__(self, root: Path, node: FakeNode) -> None:
        self.specs = CdiFolder(root / "cdi")
        for name in (S1, SHARED):
            self.specs.write(CdiSpec(name=name))
        (root / "cdi" / "nvidia.json").write_text("{}")
        self.mps = root / "mps"
        for folder in ("GPU-a", "shm"):
            (self.mps / folder / "pipe").mkdir(parents=True)
        self.withdrawn = 0
        self.programs = root / "bin"
        self.programs.mkdir()
        (self.programs / "fracgpu-verify").touch()
        self.cleanup = NodeCleanup(
            node=NODE,
            client=node,
            recorder=node,
            pods=lambda: [a_pod("stays", phase="Running"), a_pod("over", phase="Succeeded")],
            specs=self.specs,
            programs=self.programs,
            folders=(self.mps, root / "none"),
            withdraw=self._withdraw,
        )

    async def _withdraw(self) -> None:
        self.withdrawn += 1

    def left(self) -> tuple[set[str], set[str]]:
        return set(self.specs.names()), {path.name for path in self.mps.iterdir()}


async def test_a_node_that_shares_no_more_loses_marks_and_files(tmp_path: Path) -> None:
    for place, share in (("a", None), ("b", "false")):
        node = FakeNode(share=share)
        rig = Rig(tmp_path / place, node)

        await rig.cleanup.run()

        gone = {names.GPU_MEM: None}
        assert node.writes == [
            {"status": {"capacity": gone, "allocatable": gone}},
            {
                "metadata": {
                    "labels": {names.DRIVER_LABEL: None},
                    "annotations": {names.NODE_CARDS: None},
                }
            },
            {"status": {"conditions": [{"type": names.SHARING_CONDITION, "$patch": "delete"}]}},
        ]
        assert rig.left() == (set(), {"shm"})
        assert rig.withdrawn == 1
        assert not rig.programs.exists()
        assert (tmp_path / place / "cdi" / "nvidia.json").exists()
        ((reason, note),) = node.events
        assert reason == "SharingEnded"
        assert note.endswith("cannot be restarted: ml/stays")


async def test_a_restart_takes_nothing_back(tmp_path: Path) -> None:
    node = FakeNode(share="true")
    rig = Rig(tmp_path, node)

    await rig.cleanup.run()

    assert (node.writes, rig.withdrawn) == ([], 0)
    assert rig.left() == ({S1, SHARED}, {"GPU-a", "shm"})
    assert list(rig.programs.iterdir()) == [rig.programs / "fracgpu-verify"]


async def test_an_api_server_that_is_away_leaves_everything_as_it_is(tmp_path: Path) -> None:
    node = FakeNode(share=None)
    node.down = True
    rig = Rig(tmp_path, node)

    await rig.cleanup.run()

    assert rig.left() == ({S1, SHARED}, {"GPU-a", "shm"})
    assert list(rig.programs.iterdir()) == [rig.programs / "fracgpu-verify"]
