"""Which tests are nearest to a file."""

from pathlib import Path

import pytest

from tools.near import ROOT, main, nearest

FILES = {
    "tests/house/test_door.py": "from house.door import Door",
    "tests/house/test_rooms.py": "import house.wall\nfrom tests.support.keys import a_key",
    "tests/street/test_trees.py": "from house.window import Window",
    "tests/support/keys.py": "from house import lock",
    "tests/e2e/test_real_house.py": "from house.roof import Roof",
    "tests/house/cellar/__init__.py": "",
}


@pytest.mark.parametrize(
    ("file", "tests"),
    [
        pytest.param("house/door.py", "house/test_door.py", id="the one that mirrors it"),
        pytest.param("tests/house/test_door.py", "house/test_door.py", id="the test itself"),
        pytest.param("house/wall.py", "house/test_rooms.py", id="one that imports it"),
        pytest.param("house/lock.py", "house/test_rooms.py", id="through what supports it"),
        pytest.param("tests/support/keys.py", "house/test_rooms.py", id="of what supports it"),
        pytest.param("house/window.py", "street/test_trees.py", id="one of another folder"),
        pytest.param("house/roof.py", "house", id="none with real parts, but its folder"),
        pytest.param("house/cellar/shelf.py", "house/cellar", id="the innermost folder"),
        pytest.param("house/attic/box.py", "house", id="the next folder where it has none"),
    ],
)
def test_the_nearest_tests_of_a_file(tmp_path: Path, file: str, tests: str) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    assert nearest(Path(file), tmp_path) == [Path("tests") / tests]


def test_every_file_of_ours_has_tests_near_it() -> None:
    for file in ("kube/errors.py", "fracgpu/names.py", "rebalancer/moves/store.py"):
        found = nearest(Path(file))

        assert (ROOT / file).exists()
        assert 0 < len(found) <= 12
        assert all((ROOT / path).exists() for path in found)


def test_a_file_that_does_not_exist_is_a_wrong_call(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nowhere.py"]) == main([]) == 2
    assert "want FILE=" in capsys.readouterr().err
