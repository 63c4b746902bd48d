"""Which files of Debian's packages the image has."""

import pytest

from tools.image.debian import is_kept, merged
from tools.image.platforms import PLATFORMS, Platform

EVERY = pytest.mark.parametrize("platform", PLATFORMS.values(), ids=lambda one: one.name)


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("./lib/x86_64-linux-gnu/libc.so.6", "usr/lib/x86_64-linux-gnu/libc.so.6"),
        ("./lib64/ld-linux-x86-64.so.2", "usr/lib64/ld-linux-x86-64.so.2"),
        ("./bin/dash", "usr/bin/dash"),
        ("./usr/bin/python3.11", "usr/bin/python3.11"),
        ("./etc/os-release", "etc/os-release"),
    ],
)
def test_files_outside_of_usr_go_where_a_merged_system_has_them(name: str, path: str) -> None:
    assert merged(name) == path


@EVERY
def test_python_its_libraries_and_the_loader_are_kept(platform: Platform) -> None:
    kept = (
        platform.loader,
        "usr/bin/python3.11",
        "usr/lib/python3.11/asyncio/runners.py",
        f"usr/lib/python3.11/lib-dynload/_ssl.cpython-311-{platform.triplet}.so",
        f"usr/lib/{platform.triplet}/libc.so.6",
        f"usr/lib/{platform.triplet}/libssl.so.3",
        "usr/lib/os-release",
    )

    assert [path for path in kept if not is_kept(path, platform)] == []


@EVERY
def test_shells_package_managers_documents_and_unused_modules_are_not(platform: Platform) -> None:
    dropped = (
        "usr/bin/dash",
        "usr/bin/dpkg",
        "usr/bin/perl",
        "usr/bin/openssl",
        "usr/share/man/man1/python3.11.1.gz",
        "usr/lib/python3.11/pydoc_data/topics.py",
        f"usr/lib/python3.11/lib-dynload/nis.cpython-311-{platform.triplet}.so",
        f"usr/lib/{platform.triplet}/libkrb5.so.3",
        f"usr/lib/{platform.triplet}/gconv/UTF-16.so",
    )

    assert [path for path in dropped if is_kept(path, platform)] == []
