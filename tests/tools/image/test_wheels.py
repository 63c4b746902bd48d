"""What FracGPU's own layer is built from, and what is left out of others' packages."""

from pathlib import Path

from tools.image.elf import needed_by
from tools.image.wheels import SITE, context, install_ours, prune

ROOT = Path(__file__).parents[3]


def test_the_context_is_what_the_dockerignore_lets_in() -> None:
    found = context(ROOT)

    assert {"pyproject.toml", "requirements-image.lock", "cli", "fracgpu"} <= set(found)
    assert "tests" not in found
    assert [name for name in found if not (ROOT / name).exists()] == []


def test_tests_stubs_and_sources_of_compiled_modules_are_left_out(tmp_path: Path) -> None:
    for name in (
        *("p/__init__.py", "p/fast.so", "p/latest.py"),
        *("p/tests/test_a.py", "p/fast.pyx", "p/__init__.pyi", "p/include/p.h"),
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    prune(tmp_path)

    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert left == ["p/__init__.py", "p/fast.so", "p/latest.py"]


def test_the_list_of_a_packages_files_does_not_tell_where_it_was_built(tmp_path: Path) -> None:
    record = tmp_path / "p-1.dist-info/RECORD"
    record.parent.mkdir()
    there = "p.py,sha256=a,1\np-1.dist-info/RECORD,,\n"
    # pip writes the hash of a program whose first line is the path of the machine's Python.
    record.write_text(f"../../bin/p,sha256=of-a-path,217\np/tests/test_p.py,sha256=b,2\n{there}")
    (tmp_path / "p.py").touch()

    prune(tmp_path)

    assert record.read_text() == there


def test_our_wheel_is_installed_with_the_command_that_starts_it(tmp_path: Path) -> None:
    install_ours(ROOT, tmp_path, epoch=1_700_000_000)

    assert (tmp_path / SITE / "cli/main.py").read_text() == (ROOT / "cli/main.py").read_text()
    assert list((tmp_path / SITE).glob("fracgpu-*.dist-info/METADATA"))
    policy = tmp_path / SITE / "fracgpu/placement/policies/least_waste"
    libraries = {"least_waste-x86_64.so", "least_waste-aarch64.so"}
    assert {path.name for path in policy.glob("*.so")} == libraries
    # They need no library, so that they load on any Linux, whatever its C library.
    assert [needed_by(path) for path in policy.glob("*.so")] == [[], []]
    hooks = tmp_path / SITE / "deviceplugin/container"
    programs = {"verify-x86_64", "verify-aarch64"}
    assert {path.name for path in hooks.glob("verify-*")} == programs
    script = tmp_path / "usr/local/bin/fracgpu"
    assert script.read_text().startswith("#!/usr/bin/python3.11\n")
    assert script.stat().st_mode & 0o111
    assert not (tmp_path / SITE / "tests").exists()
    assert not (ROOT / "build/lib").exists(), "the build must leave nothing in the checkout"
