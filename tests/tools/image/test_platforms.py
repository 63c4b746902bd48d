"""The architectures of the image, and the wheels that run on them."""

import pytest
from packaging.tags import sys_tags

from tools.image.platforms import PLATFORMS, UnknownPlatformError, own_platform


def test_the_wheels_of_this_machine_are_taken_for_it() -> None:
    own = own_platform()

    # The musl and plain linux tags are not of Debian's glibc, and newer glibc's are too new.
    mine = {tag.platform for tag in sys_tags() if tag.platform.startswith("manylinux")}
    assert f"manylinux_2_28_{own.machine}" in mine & set(own.wheel_tags)
    assert f"manylinux2014_{own.machine}" in own.wheel_tags


def test_an_architecture_without_an_image_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(PLATFORMS) == {"amd64", "arm64"}
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(UnknownPlatformError, match="a riscv64; want one of x86_64, aarch64"):
        own_platform()
