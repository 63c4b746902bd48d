"""The bill of materials of one image, in CycloneDX JSON.

Source: the CycloneDX specification 1.6 (https://cyclonedx.org/docs/1.6/json/) and the package
URLs of Debian and PyPI packages (https://github.com/package-url/purl-spec). The serial number is
made from the contents, and the time is that of the sources, so that the same image has the same.
"""

import hashlib
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Final

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import DisjunctiveLicense
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.image.debian import DebianPackage
from tools.image.platforms import SUITE
from tools.image.wheels import SITE

_NAMESPACE: Final = uuid.UUID("5e0f3a0e-4f2f-5d0c-9a57-0d6a1c1f7f52")
OURS: Final = "fracgpu"


def write_sbom(
    target: Path, *, root: Path, debian: Sequence[DebianPackage], architecture: str, epoch: int
) -> None:
    """Write what the image has: its Debian packages and the Python packages below *root*."""
    python = sorted(distributions(path=[str(root / SITE)]), key=lambda found: found.name)
    ours = next(found for found in python if canonicalize_name(found.name) == OURS)
    image = Component(
        name=OURS,
        version=ours.version,
        type=ComponentType.CONTAINER,
        bom_ref=f"image-{architecture}",
        purl=PackageURL("oci", None, OURS, None, {"arch": architecture}),
    )
    packages: Mapping[str, Component] = {
        canonicalize_name(found.name): _python(found) for found in python
    }
    system = [_debian(package) for package in debian]
    bom = Bom(components=[*packages.values(), *system])
    bom.metadata.component = image
    bom.metadata.timestamp = datetime.fromtimestamp(epoch, UTC)
    bom.register_dependency(image, [packages[OURS], *system])
    for found in python:
        name = canonicalize_name(found.name)
        needed = [packages[one] for one in _needed(found) if one in packages and one != name]
        bom.register_dependency(packages[name], needed)
    listed = "\n".join(sorted(str(one.purl) for one in bom.components))
    digest = hashlib.sha256(f"{architecture}\n{epoch}\n{listed}".encode()).hexdigest()
    bom.serial_number = uuid.uuid5(_NAMESPACE, digest)
    target.write_text(f"{JsonV1Dot6(bom).output_as_string(indent=2)}\n")


def _python(found: Distribution) -> Component:
    purl = PackageURL("pypi", None, canonicalize_name(found.name), found.version)
    licence = _field(found, "License-Expression") or _field(found, "License")
    # Some packages have their licence's whole text there.
    name = licence.strip().partition("\n")[0]
    return Component(
        name=canonicalize_name(found.name),
        version=found.version,
        type=ComponentType.LIBRARY,
        bom_ref=str(purl),
        purl=purl,
        licenses=[DisjunctiveLicense(name=name)] if name else (),
    )


def _field(found: Distribution, name: str) -> str:
    return str(found.metadata[name]) if name in found.metadata else ""


def _debian(package: DebianPackage) -> Component:
    qualifiers = {"arch": package.architecture, "distro": SUITE}
    purl = PackageURL("deb", "debian", package.name, package.version, qualifiers)
    return Component(
        name=package.name,
        version=package.version,
        type=ComponentType.LIBRARY,
        bom_ref=str(purl),
        purl=purl,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=package.sha256)],
    )


def _needed(found: Distribution) -> Iterable[str]:
    """Return the names that a distribution requires on Linux, its extra ``all`` included."""
    for text in found.requires or ():
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is None or marker.evaluate(_environment(text)):
            yield canonicalize_name(requirement.name)


def _environment(requirement: str) -> Mapping[str, str]:
    extra = re.search(r"extra\s*==\s*[\"'](\w+)[\"']", requirement)
    return {"sys_platform": "linux", "extra": extra[1] if extra else ""}
