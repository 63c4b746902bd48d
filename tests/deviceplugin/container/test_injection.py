"""How a container gets its card is decided at Allocate and kept for its life."""

from pathlib import Path

import pytest

from deviceplugin.container.cdi import CdiFolder, CdiSpec, device_name
from deviceplugin.container.cri import RuntimeUnknownError
from deviceplugin.container.device_links import LinkFolder
from deviceplugin.container.injection import AllocatedFolders, Injection, InjectionError

S1, S2, BOTH = frozenset({"s1"}), frozenset({"s2"}), frozenset({"s1", "s2"})


class FakeRuntime:
    def __init__(self, *, reads_cdi: bool) -> None:
        self.reads_cdi = reads_cdi
        self.silent = False

    async def sure(self) -> bool:
        if self.silent:
            raise RuntimeUnknownError("no answer")
        return self.reads_cdi


class Rig:
    """An agent's injection; creating it again restarts the agent."""

    def __init__(self, root: Path, runtime: FakeRuntime) -> None:
        self.specs, self.links = CdiFolder(root / "cdi"), LinkFolder(root / "links")
        allocated_folders = AllocatedFolders(root / "links" / ".handed-out")
        self.injection = Injection(self.specs, self.links, allocated_folders, runtime)

    async def places(self, slot_ids: frozenset[str]) -> list[object]:
        return list(await self.injection.stores(device_name(slot_ids)))


async def test_a_runtime_with_cdi_is_given_names_and_one_without_folders(tmp_path: Path) -> None:
    runtime = FakeRuntime(reads_cdi=True)
    rig = Rig(tmp_path, runtime)

    assert await rig.injection.allocate(S1) is None
    assert await rig.places(S1) == [rig.specs]

    runtime.reads_cdi = False
    assert await rig.injection.allocate(S2) is rig.links
    assert await rig.places(S2) == [rig.specs, rig.links]


async def test_a_container_with_a_cdi_name_is_not_started_by_a_runtime_that_reads_none(
    tmp_path: Path,
) -> None:
    runtime = FakeRuntime(reads_cdi=True)
    rig = Rig(tmp_path, runtime)
    await rig.injection.allocate(S1)

    runtime.reads_cdi = False

    for injection in (rig, Rig(tmp_path, runtime)):
        with pytest.raises(InjectionError, match="delete the pod") as caught:
            await injection.places(S1)
        assert caught.value.outcome == "runtime_lacks_cdi"


async def test_a_container_with_a_folder_starts_on_any_runtime_after_any_restart(
    tmp_path: Path,
) -> None:
    runtime = FakeRuntime(reads_cdi=False)
    await Rig(tmp_path, runtime).injection.allocate(S1)

    for runtime.reads_cdi in (False, True):
        rig = Rig(tmp_path, runtime)
        assert await rig.places(S1) == [rig.specs, rig.links]


async def test_a_folder_of_an_agent_that_made_no_notes_counts_as_well(tmp_path: Path) -> None:
    rig = Rig(tmp_path, FakeRuntime(reads_cdi=False))
    rig.links.write(CdiSpec(name=device_name(S1)))

    assert await rig.places(S1) == [rig.specs, rig.links]


async def test_ids_that_are_handed_out_again_begin_anew(tmp_path: Path) -> None:
    runtime = FakeRuntime(reads_cdi=False)
    rig = Rig(tmp_path, runtime)
    await rig.injection.allocate(BOTH)
    runtime.reads_cdi = True
    await rig.injection.allocate(S1)

    assert list((tmp_path / "links" / ".handed-out").iterdir()) == []
    assert await rig.places(S1) == [rig.specs]


@pytest.mark.parametrize("reads_cdi", [True, False])
async def test_of_ids_that_are_allocated_again_nothing_can_be_made_of_the_last_holders_spec(
    tmp_path: Path, reads_cdi: bool
) -> None:
    rig = Rig(tmp_path, FakeRuntime(reads_cdi=reads_cdi))
    rig.specs.write(CdiSpec(name=device_name(S1)))
    rig.specs.write(CdiSpec(name=device_name(S2)))

    await rig.injection.allocate(S1)

    assert rig.specs.environments().keys() == {device_name(S2)}
    # A container that was made of it, and has not started yet, still can.
    assert rig.specs.names() == {device_name(S1), device_name(S2)}


async def test_an_old_spec_that_cannot_be_removed_does_not_fail_the_pod(tmp_path: Path) -> None:
    rig = Rig(tmp_path, FakeRuntime(reads_cdi=True))
    (tmp_path / "cdi" / f"fracgpu.io-slot_{device_name(S1)}.json").mkdir(parents=True)

    assert await rig.injection.allocate(S1) is None


async def test_without_an_answer_of_the_runtime_no_container_starts(tmp_path: Path) -> None:
    runtime = FakeRuntime(reads_cdi=True)
    rig = Rig(tmp_path, runtime)
    await rig.injection.allocate(S1)
    runtime.silent = True

    with pytest.raises(InjectionError, match="no answer") as caught:
        await rig.places(S1)
    assert caught.value.outcome == "runtime_silent"


def test_at_the_end_only_notes_of_sets_in_use_stay_and_an_empty_folder_goes(tmp_path: Path) -> None:
    folder = tmp_path / ".handed-out"
    allocated_folders = AllocatedFolders(folder)
    for ids in ("s1", "s2"):
        allocated_folders.note(frozenset({ids}), by_links=True)
    used = device_name({"s1"})

    allocated_folders.end(held={used})
    assert [path.name for path in folder.iterdir()] == [used]
    assert used in allocated_folders

    AllocatedFolders(folder).end(held=())
    assert not folder.exists()
    AllocatedFolders(folder).end(held=())
