"""Files that are replaced all at once."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from certs.node.files import CURRENT, digest, read_note, replace_files, write_note

FILES = {"tls.crt": b"one", "tls.key": b"secret"}


def held(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in (folder / CURRENT).iterdir()}


def test_they_are_there_for_their_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"

    assert replace_files(folder, FILES)

    assert held(folder) == FILES
    assert {file.stat().st_mode & 0o777 for file in (folder / CURRENT).iterdir()} == {0o600}
    assert (folder / CURRENT).resolve().stat().st_mode & 0o777 == 0o700


def test_the_same_files_change_nothing_and_others_leave_none_of_before(tmp_path: Path) -> None:
    replace_files(tmp_path, FILES)
    before = (tmp_path / CURRENT).readlink()

    assert not replace_files(tmp_path, FILES)
    assert (tmp_path / CURRENT).readlink() == before
    assert replace_files(tmp_path, {"tls.crt": b"two"})

    assert held(tmp_path) == {"tls.crt": b"two"}
    assert len(list(tmp_path.iterdir())) == 2  # the set, and the link to it


def test_a_link_is_relative_so_that_a_mount_elsewhere_sees_the_same(tmp_path: Path) -> None:
    replace_files(tmp_path, FILES)

    assert not (tmp_path / CURRENT).readlink().is_absolute()


def test_what_somebody_spoilt_is_written_again(tmp_path: Path) -> None:
    replace_files(tmp_path, FILES)
    (tmp_path / CURRENT / "tls.crt").write_bytes(b"spoilt")
    assert replace_files(tmp_path, FILES)
    assert held(tmp_path) == FILES

    (tmp_path / CURRENT / "tls.key").unlink()
    assert replace_files(tmp_path, FILES)
    assert held(tmp_path) == FILES


def test_who_holds_the_folder_of_before_open_reads_on(tmp_path: Path) -> None:
    replace_files(tmp_path, FILES)
    with (tmp_path / CURRENT / "tls.crt").open("rb") as opened:
        replace_files(tmp_path, {"tls.crt": b"two"})
        assert opened.read() == b"one"


_NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)


@given(st.lists(st.dictionaries(_NAMES, st.binary()), min_size=2, max_size=2))
def test_two_sets_have_one_name_only_when_they_are_the_same(pair: list[dict[str, bytes]]) -> None:
    first, second = pair

    assert (digest(first) == digest(second)) == (first == second)


def test_a_note_is_kept(tmp_path: Path) -> None:
    assert read_note(tmp_path, "n") == ""
    write_note(tmp_path, "n", "one")
    write_note(tmp_path, "n", "two")
    assert read_note(tmp_path, "n") == "two"
