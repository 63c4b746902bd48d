"""The architectures of the image, and what each of their packages are called."""

import platform
from dataclasses import dataclass
from typing import Final

SUITE: Final = "bookworm"
PYTHON: Final = "3.11"
# Debian bookworm has glibc 2.36: wheels made for that or an older one run there (PEP 600).
_NEWEST_GLIBC: Final = 36
_OLDEST_GLIBC: Final = 5
# Names from before PEP 600 that wheels still have (PEP 513, 571, 599).
_OLDER_TAGS: Final = ("manylinux2014", "manylinux2010", "manylinux1")


class UnknownPlatformError(Exception):
    """There is no image for this architecture; the text names those that there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """One architecture.

    Attributes:
        name: as Go, OCI and Debian call it.
        machine: as Linux and Python's wheels call it.
        triplet: the folder of Debian's libraries.
        loader: the path of the dynamic loader.
    """

    name: str
    machine: str
    triplet: str
    loader: str

    @property
    def wheel_tags(self) -> tuple[str, ...]:
        """Return the platform tags of wheels that run there, newest first."""
        tags = [f"manylinux_2_{minor}" for minor in range(_NEWEST_GLIBC, _OLDEST_GLIBC - 1, -1)]
        return tuple(f"{tag}_{self.machine}" for tag in (*tags, *_OLDER_TAGS))


PLATFORMS: Final = {
    "amd64": Platform(
        name="amd64",
        machine="x86_64",
        triplet="x86_64-linux-gnu",
        loader="usr/lib64/ld-linux-x86-64.so.2",
    ),
    "arm64": Platform(
        name="arm64",
        machine="aarch64",
        triplet="aarch64-linux-gnu",
        loader="usr/lib/ld-linux-aarch64.so.1",
    ),
}


def own_platform() -> Platform:
    """Return the platform of this machine.

    Raises:
        UnknownPlatformError: there is no image for it.
    """
    machine = platform.machine()
    found = [one for one in PLATFORMS.values() if one.machine == machine]
    if not found:
        known = ", ".join(one.machine for one in PLATFORMS.values())
        raise UnknownPlatformError(f"this machine is a {machine}; want one of {known}")
    return found[0]
