"""What a container gets: its card's files, the driver's, the variables, and MPS where it is on."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from deviceplugin.cards.interface import CardHardware, CardList, DeviceNode
from deviceplugin.claims import Claim
from deviceplugin.container.mps import Folders
from deviceplugin.container.nvidia_cdi import NvidiaCdiError, NvidiaCdiSpecs
from deviceplugin.container.spec_builder import (
    ContainerSpecBuilder,
    Library,
    Mps,
    MpsError,
    SpecBuildError,
)
from deviceplugin.node.inventory import Inventory
from fracgpu.cards.card import CardUuid
from fracgpu.request.need import Isolation
from fracgpu.state.allocation import Slice
from fracgpu.units import Mib
from tests.deviceplugin.builders import a_card, a_pod, an_inventory, facts

CARDS = (a_card("GPU-a"), a_card("GPU-b", index=1, mib=16_000))
INVENTORY = an_inventory(*CARDS)


def a_claim(*cards: int, cores: int = 0) -> Claim:
    held = tuple(CARDS[index] for index in cards or (0,))
    slices = tuple(Slice(card=card.uuid, mib=Mib(1000), cores=cores) for card in held)
    return Claim(pod=a_pod(), container="train", slices=slices, cards=held)


class FakeMps(Mps):
    """Has a daemon for every card, or none."""

    def __init__(self, *, shm: str = "", down: str = "") -> None:
        self.shm = shm
        self.down = down

    def folders(self, card: CardUuid) -> Folders:
        if self.down:
            raise MpsError(self.down)
        return Folders(pipe=f"/mps/{card}/pipe", log=f"/mps/{card}/log", shm=self.shm)

    def silent(self, pipe: str) -> str | None:
        return self.down or None


class FakeLibrary(Library):
    """A library that can be loaded, or why it cannot."""

    file = Path("/var/lib/fracgpu/interposer/libvgpu.so")

    def __init__(self, problem: str | None = None) -> None:
        self.problem = problem

    def why_not(self) -> str | None:
        return self.problem


def a_builder(
    vendor: Path | None = None, mps: Mps | None = None, interposer: Library | None = None
) -> ContainerSpecBuilder:
    return ContainerSpecBuilder(
        NvidiaCdiSpecs([vendor] if vendor else []),
        mps=mps or FakeMps(down="it is not there"),
        interposer=interposer or FakeLibrary("it is not there"),
    )


def edits(claim: Claim, *, by: Isolation = Isolation.NONE, **options: Any) -> dict[str, Any]:
    document = a_builder(**options).build("n", claim, INVENTORY, by=by).document()
    (device,) = document["devices"]
    found: dict[str, Any] = device["containerEdits"]
    return found | {"cdiVersion": document["cdiVersion"]}


def env_of(found: dict[str, Any]) -> dict[str, str]:
    return dict(variable.split("=", 1) for variable in found["env"])


def test_without_a_spec_of_the_driver_a_container_gets_files_and_variables() -> None:
    found = edits(a_claim())

    assert env_of(found) == {
        "NVIDIA_VISIBLE_DEVICES": "GPU-a",
        "FRACGPU_CARDS": "GPU-a",
        "FRACGPU_MEM_MIB": "1000",
        "FRACGPU_CARD_MIB": "8000",
        "ALIYUN_COM_GPU_MEM_CONTAINER": "1000",
        "ALIYUN_COM_GPU_MEM_DEV": "8000",
    }
    assert found["deviceNodes"] == [{"path": "/dev/nvidia0"}]
    assert "mounts" not in found


def test_a_library_of_the_node_is_loaded_and_told_the_limit_of_each_card() -> None:
    found = edits(a_claim(0, 1, cores=30), by=Isolation.INTERPOSER, interposer=FakeLibrary())

    env = env_of(found)
    assert env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "1000m"
    assert env["CUDA_DEVICE_MEMORY_LIMIT_1"] == "1000m"
    assert env["CUDA_DEVICE_SM_LIMIT"] == "30"
    (mount,) = found["mounts"]
    assert mount["containerPath"] == env["LD_PRELOAD"]
    assert mount["hostPath"] == "/var/lib/fracgpu/interposer/libvgpu.so"
    assert "ro" in mount["options"]


def test_a_library_that_cannot_be_loaded_is_a_refusal() -> None:
    with pytest.raises(SpecBuildError, match=r"limited by interposer: it is on a noexec mount"):
        edits(a_claim(), by=Isolation.INTERPOSER, interposer=FakeLibrary("it is on a noexec mount"))


def a_vendor_spec(folder: Path, **fields: Any) -> Path:
    library = {"hostPath": "/usr/lib/libcuda.so.1", "containerPath": "/usr/lib/libcuda.so.1"}
    hook = {"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook", "args": ["x"]}
    document = {
        "cdiVersion": "0.7.0",
        "kind": "nvidia.com/gpu",
        "devices": [
            {
                "name": uuid,
                "containerEdits": {
                    "deviceNodes": [
                        {"path": f"/dev/nvidia{index}"},
                        {"path": f"/dev/dri/card{index}"},
                    ],
                    "hooks": [hook],
                },
            }
            for index, uuid in enumerate(("GPU-a", "GPU-b"))
        ],
        "containerEdits": {
            "env": ["NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_CTK=1"],
            "deviceNodes": [{"path": "/dev/nvidiactl"}, {"path": "/dev/nvidia-uvm"}],
            "mounts": [library],
            "hooks": [hook],
        },
        **fields,
    }
    (folder / "nvidia.json").write_text(json.dumps(document))
    return folder


def test_the_drivers_spec_adds_its_libraries_and_only_this_cards_files(
    tmp_path: Path,
) -> None:
    found = edits(a_claim(1), vendor=a_vendor_spec(tmp_path))

    assert [node["path"] for node in found["deviceNodes"]] == [
        "/dev/nvidia1",
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/dri/card1",
    ]
    assert [mount["containerPath"] for mount in found["mounts"]] == ["/usr/lib/libcuda.so.1"]
    assert len(found["hooks"]) == 1
    assert found["cdiVersion"] == "0.7.0"
    assert env_of(found)["NVIDIA_VISIBLE_DEVICES"] == "GPU-b"
    assert env_of(found)["NVIDIA_CTK"] == "1"


def test_no_hook_reads_a_limit_of_memory_from_the_containers_environment(
    tmp_path: Path,
) -> None:
    path = "/usr/bin/nvidia-cdi-hook"
    common = {"hookName": "createContainer", "path": path, "args": [path, "update-ldcache"]}
    args = [path, "apply-cuda-memory-limits", "--gpu-id", "GPU-a"]
    limits = {"hookName": "createRuntime", "path": path, "args": args}
    edited = {"deviceNodes": [{"path": "/dev/nvidia0"}], "hooks": [limits]}
    devices = [{"name": "GPU-a", "containerEdits": edited}]
    vendor = a_vendor_spec(tmp_path, devices=devices, containerEdits={"hooks": [common]})

    found = edits(a_claim(), vendor=vendor)

    assert found["hooks"] == [common]


def test_two_cards_share_the_common_part(tmp_path: Path) -> None:
    found = edits(a_claim(0, 1), vendor=a_vendor_spec(tmp_path))

    paths = [node["path"] for node in found["deviceNodes"]]
    assert sorted(paths) == sorted(set(paths))
    assert {"/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl"} < set(paths)
    assert len(found["mounts"]) == 1


def test_a_stale_spec_of_the_driver_is_a_refusal_with_its_remedy(tmp_path: Path) -> None:
    stale = [{"name": "GPU-a", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia5"}]}}]

    with pytest.raises(SpecBuildError, match="nvidia-ctk cdi generate"):
        edits(a_claim(), vendor=a_vendor_spec(tmp_path, devices=stale))


def test_with_mps_a_container_is_limited_by_our_own_mib_and_cores() -> None:
    found = edits(a_claim(0, cores=30), by=Isolation.MPS, mps=FakeMps(shm="/mps/shm"))

    env = env_of(found)
    assert env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=1000M"
    assert env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "30"
    mounted = {mount["containerPath"]: mount["hostPath"] for mount in found["mounts"]}
    assert mounted == {
        env["CUDA_MPS_PIPE_DIRECTORY"]: "/mps/GPU-a/pipe",
        env["CUDA_MPS_LOG_DIRECTORY"]: "/mps/GPU-a/log",
        "/dev/shm": "/mps/shm",  # noqa: S108 - where MPS keeps what it shares
    }


def test_cores_that_are_shared_freely_are_not_limited() -> None:
    env = env_of(edits(a_claim(), by=Isolation.MPS, mps=FakeMps()))

    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in env


def test_a_container_that_did_not_ask_by_name_gets_neither_mps_nor_the_library() -> None:
    found = edits(a_claim(), by=Isolation.BEST, mps=FakeMps(), interposer=FakeLibrary())

    assert not [key for key in env_of(found) if "MPS" in key or "LIMIT" in key]
    assert "mounts" not in found


def test_several_cards_have_no_mps() -> None:
    with pytest.raises(SpecBuildError, match="one card only"):
        edits(a_claim(0, 1), by=Isolation.MPS, mps=FakeMps())


def test_a_daemon_that_does_not_answer_is_a_refusal_when_created_and_when_started() -> None:
    with pytest.raises(SpecBuildError, match="train of ml/train-0 cannot be limited by mps: it is"):
        edits(a_claim(), by=Isolation.MPS, mps=FakeMps(down="it is away"))

    spec = a_builder(mps=FakeMps()).build("n", a_claim(), INVENTORY, by=Isolation.MPS)
    away = a_builder(mps=FakeMps(down="it went away"))
    assert a_builder(mps=FakeMps()).why_not_any_more(spec.mounts) is None
    assert "it went away" in str(away.why_not_any_more(spec.mounts))
    other = a_builder().build("n", a_claim(), INVENTORY)
    assert away.why_not_any_more(other.mounts) is None


A, B = facts(a_card("GPU-a")), facts(a_card("GPU-b", index=1))


def a_device(name: str, *numbers: int) -> dict[str, Any]:
    nodes = [{"path": f"/dev/nvidia{number}"} for number in numbers]
    return {"name": name, "containerEdits": {"deviceNodes": nodes}}


def write(folder: Path, *devices: dict[str, Any], name: str = "nvidia.yaml", **fields: Any) -> Path:
    """A spec as nvidia-ctk writes it, shortened."""
    document = {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": list(devices), **fields}
    folder.mkdir(exist_ok=True)
    file = folder / name
    file.write_text(json.dumps(document) if name.endswith("json") else yaml.safe_dump(document))
    return file


def test_a_card_is_found_by_its_uuid(tmp_path: Path) -> None:
    write(tmp_path, a_device("0", 0), a_device("GPU-a", 0), a_device("all", 0, 1))

    spec = NvidiaCdiSpecs([tmp_path]).find([A])

    assert spec is not None
    assert spec.edits(A) == {"deviceNodes": [{"path": "/dev/nvidia0"}]}


def test_where_only_indexes_are_named_the_device_file_tells(tmp_path: Path) -> None:
    write(tmp_path, a_device("all", 0, 1), a_device("0", 1), a_device("1", 0), name="nvidia.json")

    spec = NvidiaCdiSpecs([tmp_path]).find([A, B])

    assert spec is not None
    assert spec.edits(A)["deviceNodes"] == [{"path": "/dev/nvidia0"}]


def test_a_spec_that_gives_another_device_file_is_stale_and_refused(tmp_path: Path) -> None:
    write(tmp_path, a_device("GPU-a", 1))
    spec = NvidiaCdiSpecs([tmp_path]).find([A])

    assert spec is not None
    with pytest.raises(NvidiaCdiError, match="has /dev/nvidia1 for GPU-a, which is /dev/nvidia0"):
        spec.edits(A)


def test_a_spec_that_lacks_one_of_the_nodes_cards_is_refused_for_it(tmp_path: Path) -> None:
    write(tmp_path, a_device("GPU-a", 0))
    spec = NvidiaCdiSpecs([tmp_path]).find([A, B])

    assert spec is not None
    with pytest.raises(NvidiaCdiError, match="does not have GPU-b; regenerate it"):
        spec.edits(B)


def test_a_spec_of_other_cards_or_kinds_is_none_of_our_business(tmp_path: Path) -> None:
    write(tmp_path / "x", a_device("GPU-x", 7))
    write(tmp_path / "y", a_device("GPU-a", 0), kind="other.com/gpu")

    assert NvidiaCdiSpecs([tmp_path / "x", tmp_path / "y", tmp_path / "none"]).find([A]) is None


def test_a_spec_that_changes_is_read_again(tmp_path: Path) -> None:
    specs = NvidiaCdiSpecs([tmp_path])
    write(tmp_path, a_device("GPU-x", 7))
    assert specs.find([A]) is None

    write(tmp_path, a_device("GPU-a", 0), a_device("GPU-x", 7))
    assert specs.find([A]) is not None


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{",
        "a: [",
        "text",
        "kind: nvidia.com/gpu\ndevices: [1]",
        "kind: nvidia.com/gpu\ndevices: [{containerEdits: {}}]",
        "kind: nvidia.com/gpu\ndevices: [{name: GPU-a, containerEdits: {mounts: [1]}}]",
        "kind: nvidia.com/gpu\ndevices: [{name: GPU-a, containerEdits: {env: [1]}}]",
        "kind: nvidia.com/gpu\ncontainerEdits: 7",
    ],
)
def test_what_is_no_spec_is_named_and_never_half_used(tmp_path: Path, text: str) -> None:
    file = tmp_path / "nvidia.yaml"
    file.write_text(text)

    try:
        assert NvidiaCdiSpecs([tmp_path]).find([A]) is None
    except NvidiaCdiError as error:
        assert str(file) in str(error)  # noqa: PT017 - either answer is right, a third is not


@pytest.mark.parametrize(
    "edits",
    [
        {"mounts": [{"hostPath": "/a"}, {"hostPath": "/b"}]},
        {"mounts": {"hostPath": "/a", "containerPath": "/a"}},
        {"deviceNodes": [{"hostPath": "/dev/x"}, {"path": 7}]},
        {"hooks": [{"hookName": "createContainer", "path": "/x", "args": 7}]},
        {"env": "A=b"},
        {"deviceNodes": [{"path": "/dev/x", "fileMode": -1}]},
        {"mounts": [{"hostPath": "/a", "containerPath": "/a", "options": [1]}]},
        {"hooks": [{"hookName": "createContainer", "path": "/x", "timeout": "5"}]},
    ],
)
def test_no_container_is_made_of_a_spec_with_something_missing(
    tmp_path: Path, edits: dict[str, Any]
) -> None:
    file = write(tmp_path, a_device("GPU-a", 0), containerEdits=edits)

    with pytest.raises(SpecBuildError, match=f"{file} is not a CDI spec"):
        a_builder(vendor=tmp_path).build("n", a_claim(), an_inventory(CARDS[0]))


@pytest.mark.parametrize("value", [b"\xe2\x82", b"!!bool maybe", b"!!int ''", b"!!timestamp noon"])
def test_a_file_that_was_cut_within_a_character_or_has_odd_tags_is_named(
    tmp_path: Path, value: bytes
) -> None:
    (tmp_path / "nvidia.yaml").write_bytes(b"kind: nvidia.com/gpu\nname: " + value)

    with pytest.raises(NvidiaCdiError, match="is not a CDI spec"):
        NvidiaCdiSpecs([tmp_path]).find([A])


def test_a_value_that_no_spec_can_have_is_named(tmp_path: Path) -> None:
    text = "kind: nvidia.com/gpu\ncontainerEdits: {additionalGids: [2026-11-29]}"
    (tmp_path / "nvidia.yaml").write_text(text)

    with pytest.raises(NvidiaCdiError, match=r"is not a CDI spec: .*date is not JSON"):
        NvidiaCdiSpecs([tmp_path]).find([A])


def test_a_folder_in_the_place_of_the_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "nvidia.yaml").mkdir()

    with pytest.raises(NvidiaCdiError, match="cannot read"):
        NvidiaCdiSpecs([tmp_path]).find([A])


AMD_CARDS = (
    a_card("AMD-x", model="AMD Instinct MI210"),
    a_card("AMD-y", index=1, mib=16_000, model="AMD Instinct MI210"),
)
MIXED = Inventory(
    card_list=CardList(
        cards=(
            *INVENTORY.card_list.cards,
            *(
                CardHardware(
                    card=replace(card, index=5 - card.index),
                    device_nodes=(DeviceNode(path=f"/dev/dri/renderD{128 + card.index}"),),
                    common_nodes=(DeviceNode(path="/dev/kfd"),),
                    compute_units=104,
                )
                for card in AMD_CARDS
            ),
        )
    )
)


def an_amd_claim(*indexes: int, cores: int = 0) -> Claim:
    held = tuple(AMD_CARDS[index] for index in indexes or (0,))
    slices = tuple(Slice(card=card.uuid, mib=Mib(1000), cores=cores) for card in held)
    return Claim(pod=a_pod(), container="train", slices=slices, cards=held)


def amd_edits(
    claim: Claim, *, by: Isolation = Isolation.NONE, vendor: Path | None = None
) -> dict[str, Any]:
    builder = a_builder(vendor, FakeMps(), FakeLibrary())
    (device,) = builder.build("n", claim, MIXED, by=by, taken=()).document()["devices"]
    found: dict[str, Any] = device["containerEdits"]
    return found


def test_an_amd_container_gets_nothing_of_nvidias_on_a_node_of_both(tmp_path: Path) -> None:
    found = amd_edits(an_amd_claim(), vendor=a_vendor_spec(tmp_path))

    assert env_of(found) == {
        "NVIDIA_VISIBLE_DEVICES": "void",
        "FRACGPU_CARDS": "AMD-x",
        "FRACGPU_MEM_MIB": "1000",
        "FRACGPU_CARD_MIB": "8000",
        "ALIYUN_COM_GPU_MEM_CONTAINER": "1000",
        "ALIYUN_COM_GPU_MEM_DEV": "8000",
    }
    assert found["deviceNodes"] == [{"path": "/dev/dri/renderD128"}, {"path": "/dev/kfd"}]
    assert found.keys() == {"env", "deviceNodes"}


def test_a_part_of_an_amd_cards_compute_is_a_mask_in_the_order_that_rocm_numbers_cards() -> None:
    env = env_of(amd_edits(an_amd_claim(0, 1, cores=25)))

    # AMD-y has the lower index on the node.
    assert env["HSA_CU_MASK"] == "0:0-25;1:0-25"
    assert env["FRACGPU_COMPUTE_UNITS"] == "AMD-x=0-25;AMD-y=0-25"
    assert "HSA_CU_MASK" not in env_of(amd_edits(an_amd_claim(cores=100)))


@pytest.mark.parametrize("isolation", [Isolation.MPS, Isolation.INTERPOSER])
def test_what_works_on_nvidias_cards_only_is_refused_on_amds_with_the_reason(
    isolation: Isolation,
) -> None:
    with pytest.raises(SpecBuildError, match=f"{isolation.value}: it works on NVIDIA's cards only"):
        amd_edits(an_amd_claim(), by=isolation)


def test_a_container_with_cards_of_two_vendors_is_refused() -> None:
    ours, theirs = an_amd_claim(), a_claim()
    claim = replace(ours, slices=(*ours.slices, *theirs.slices), cards=(*ours.cards, *theirs.cards))

    with pytest.raises(SpecBuildError, match="has cards of several vendors"):
        amd_edits(claim)
