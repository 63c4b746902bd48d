"""Another file at the same path is another socket."""

from pathlib import Path

import pytest

from deviceplugin.sockets import SocketError, check_socket_path, socket_identity


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


def test_a_path_too_long_for_a_socket_is_refused_with_its_length() -> None:
    check_socket_path(Path("/" + "a" * 106))

    with pytest.raises(SocketError, match="has 108 bytes; want at most 107"):
        check_socket_path(Path("/" + "a" * 107))
