"""The image as it is built: what is in it, and that every role starts from it."""

import json
import os
import re
from pathlib import Path
from typing import Final

import pytest

from cli.commands.run import ROLES
from tests.support.bill import why_not_valid
from tests.support.image_files import Unpacked, run_in, run_python, unpack
from tests.support.images import COMPRESSION, EPOCH, ROOT, NoImageError, dockerfile_image, our_image
from tools.image.build import Order, build
from tools.image.platforms import own_platform

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(2400)]

NAME: Final = "docker.io/library/fracgpu:0.1.0"
NOBODY: Final = 65532
_MIB: Final = 1024 * 1024
# With the compression of tests; that of releases makes it a tenth smaller.
_LARGEST_MIB: Final = 90
_NOT_NEEDED: Final = re.compile(
    r"/(pip|setuptools|ziglang|wheel|ensurepip|tests?)$|"
    r"bin/(gcc|cc|g\+\+|make|apt|dpkg|perl|bash|dash|sh)$"
)
_SITE: Final = "usr/local/lib/python3.11/dist-packages"
# Loads what the roles load only when they are busy.
_IMPORTS: Final = (
    "import ssl, grpc, numpy, cryptography.x509, pynvml, prometheus_api_client, cel, os;"
    "from fracgpu.placement.policies.least_waste.library import LIBRARY;"
    "assert LIBRARY.problem is None, LIBRARY.problem;"
    "print(os.getuid(), os.access('/', os.W_OK), len(ssl.create_default_context().get_ca_certs()))"
)


def built() -> Path:
    try:
        return our_image(NAME)
    except NoImageError as error:
        pytest.skip(f"no image: {error}")


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Unpacked:
    return unpack(built(), tmp_path_factory.mktemp("image"))


def starts(image: Unpacked) -> None:
    """Assert that every role starts, as nobody's user and as root, and cannot write anywhere."""
    for role in ROLES:
        for uid in (NOBODY, 0):
            done = run_in(image, "run", role, "--help", uid=uid)
            assert done.returncode == 0, f"{role} as {uid}: {done.stderr}"
            assert f"fracgpu run {role}" in done.stdout
    done = run_python(image, _IMPORTS, uid=NOBODY)
    assert done.returncode == 0, done.stderr
    who, writable, authorities = done.stdout.split()
    assert (who, writable) == (str(NOBODY), "False")
    assert int(authorities) > 100


def test_every_role_starts_as_nobody_and_as_root_without_any_privilege(image: Unpacked) -> None:
    assert image.user == f"{NOBODY}:{NOBODY}"
    starts(image)


def test_every_role_starts_from_the_image_of_the_dockerfile(tmp_path: Path) -> None:
    try:
        image = dockerfile_image(tmp_path)
    except NoImageError as error:
        pytest.skip(f"no image: {error}")

    assert image.user == f"{NOBODY}:{NOBODY}"
    starts(image)


def test_there_is_nothing_in_it_that_no_role_needs(image: Unpacked) -> None:
    found = [
        str(path.relative_to(image.root))
        for path in image.root.rglob("*")
        if _NOT_NEEDED.search(str(path.relative_to(image.root)))
    ]

    assert found == []
    assert image.compressed_bytes < _LARGEST_MIB * _MIB


def test_the_bill_of_materials_is_valid_and_names_every_package(image: Unpacked) -> None:
    (sbom,) = built().parent.glob("sbom-*.cdx.json")
    text = sbom.read_text()

    assert why_not_valid(text) is None
    listed = {one["purl"].partition("?")[0] for one in json.loads(text)["components"]}
    python = list((image.root / _SITE).glob("*.dist-info"))
    debian = list((image.root / "var/lib/dpkg/status.d").iterdir())
    assert len([one for one in listed if one.startswith("pkg:pypi/")]) == len(python)
    assert len([one for one in listed if one.startswith("pkg:deb/")]) == len(debian)
    assert {"libc6", "libssl3", "python3.11-minimal"} <= {path.name for path in debian}


def test_two_builds_make_the_same_image(tmp_path: Path) -> None:
    first = built()
    before = os.umask(0o077)
    try:
        second = build(
            Order(
                source=ROOT,
                folder=tmp_path,
                platforms=[own_platform()],
                name=NAME,
                epoch=EPOCH,
                compression=COMPRESSION,
                cache=first.parents[1] / "packages",
            ),
            lambda _line: None,
        )
    finally:
        os.umask(before)

    assert second.archive.read_bytes() == first.read_bytes()
    (bill,) = second.sboms
    assert bill.read_bytes() == (first.parent / bill.name).read_bytes()
