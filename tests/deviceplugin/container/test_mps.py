"""A container uses an MPS daemon only if the node's agent finds that it answers."""

import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from deviceplugin.container.mps import ANSWERED, CONTROL, Folders, MpsOfNode, boot_s
from deviceplugin.container.spec_builder import MpsError
from fracgpu.cards.card import CardUuid

A = CardUuid("GPU-a")


@pytest.fixture
def root() -> Iterator[Path]:
    """The folder of a node whose one daemon has just answered, and listens."""
    with (
        tempfile.TemporaryDirectory(prefix="fg-") as name,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as daemon,
    ):
        pipe = Path(name) / A / "pipe"
        pipe.mkdir(parents=True)
        daemon.bind(str(pipe / CONTROL))
        daemon.listen()
        (pipe.parent / ANSWERED).write_text(f"{boot_s()}\n")
        yield Path(name)


def refusal(root: Path) -> str:
    with pytest.raises(MpsError) as caught:
        MpsOfNode(root).folders(A)
    return str(caught.value)


def test_one_that_listens_and_has_answered_is_used(root: Path) -> None:
    folder = root / A
    expected = Folders(pipe=str(folder / "pipe"), log=str(folder / "log"))

    assert MpsOfNode(root).folders(A) == expected
    assert MpsOfNode(root).silent(expected.pipe) is None


def test_shared_memory_is_mounted_where_the_node_has_a_folder_for_it(root: Path) -> None:
    (root / "shm").mkdir()

    assert MpsOfNode(root).folders(A).shm == str(root / "shm")


@pytest.mark.parametrize("age_s", [21, 3600, -1])
def test_one_that_has_not_answered_lately_is_not(root: Path, age_s: float) -> None:
    (root / A / ANSWERED).write_text(f"{boot_s() - age_s}\n")

    assert "its last answer was" in refusal(root)


def test_one_that_never_answered_is_not(root: Path) -> None:
    (root / A / ANSWERED).write_text("")
    assert "answered has no time" in refusal(root)
    (root / A / ANSWERED).unlink()
    assert "answered: No such file" in refusal(root)


def test_the_socket_of_one_that_is_gone_is_not_enough(root: Path) -> None:
    control = root / A / "pipe" / CONTROL
    control.unlink()
    assert "control: No such file" in refusal(root)
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(control))
    assert "control: Connection refused" in refusal(root)
    control.unlink()
    control.write_text("")
    assert "control is no socket" in refusal(root)


def test_one_that_listens_in_another_way_is_used(root: Path) -> None:
    control = root / A / "pipe" / CONTROL
    control.unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as daemon:
        daemon.bind(str(control))
        daemon.listen()

        assert MpsOfNode(root).folders(A).pipe
