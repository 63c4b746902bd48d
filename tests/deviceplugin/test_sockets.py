"""Another file at the same path is another socket."""

from pathlib import Path

from deviceplugin.sockets import socket_identity


def test_a_file_made_anew_is_another_one_and_none_is_none(tmp_path: Path) -> None:
    file = tmp_path / "x.sock"
    assert socket_identity(file) is None

    file.touch()
    first = socket_identity(file)
    assert first == socket_identity(file)

    (tmp_path / "kept").hardlink_to(file)  # so that its inode is not given to the next one
    file.unlink()
    file.touch()
    assert socket_identity(file) not in (None, first)
