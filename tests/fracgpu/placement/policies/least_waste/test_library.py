"""A library that does not belong to the door is not loaded, and the extender then packs."""

import ctypes
import platform
import shutil
from pathlib import Path

import pytest

from fracgpu.placement.policies.least_waste import library
from fracgpu.placement.policies.least_waste.library import LIBRARY, Library, layout, load
from fracgpu.placement.policies.least_waste.order import LeastWasteOrder
from tests.fracgpu.placement.policies.least_waste.demands import HALF
from tests.scheduler.harness import Harness

FOLDER = Path(library.__file__).parent
BUILT = FOLDER / f"least_waste-{platform.machine()}.so"


def test_the_library_of_this_machine_is_loaded() -> None:
    assert LIBRARY.problem is None
    assert load(str(BUILT)).problem is None


def test_a_library_for_other_structs_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    before = layout()

    class Other(ctypes.Structure):
        _fields_ = (("mib", ctypes.c_int64),)

    monkeypatch.setattr(library, "Request", Other)

    found = load(str(BUILT))
    assert layout() != before
    assert found.rank is None
    assert "was compiled for other structs" in (found.problem or "")


def test_no_file_and_no_library_of_ours_are_problems_as_well(tmp_path: Path) -> None:
    missing = load(str(tmp_path / "none.so"))
    other = load("libc.so.6")
    broken = tmp_path / "broken.so"
    shutil.copy(FOLDER / "least_waste.c", broken)

    for found in (missing, other, load(str(broken))):
        assert found.rank is None
        assert found.problem


def test_without_a_library_nothing_is_learnt_and_the_cards_scores_decide() -> None:
    cluster = Harness("a", "b", cards=2)
    order = LeastWasteOrder(
        cluster.matrix,
        cluster.bound_pods,
        now=cluster.clock.now,
        library=Library(None, "no such file"),
    )
    order.expect([HALF])
    order.learn_now()

    assert order.problem == "no such file"
    assert not order.learnt
    assert order.times_learnt == 0
    assert list(order.catching_up()) == []
