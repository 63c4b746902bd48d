"""The bottom layer: Python and the libraries that it needs, from Debian's own packages.

mmdebstrap finds, fetches and verifies the packages of any architecture. They are unpacked, not
installed: no maintainer script runs, so the architecture may be another one. Only files that the
roles need are kept: there is no shell, no package manager and no compiler.
"""

import hashlib
import io
import re
import shutil
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from email.parser import Parser
from pathlib import Path, PurePosixPath
from typing import Final

from tools.image.commands import run
from tools.image.platforms import PYTHON, SUITE, Platform

# libstdc++6: for wheels of grpcio and numpy. ca-certificates: for API servers and Prometheus behind
# public authorities.
_WANTED: Final = (
    f"python{PYTHON}-minimal",
    f"libpython{PYTHON}-stdlib",
    "libstdc++6",
    "ca-certificates",
    "base-files",
)
_STDLIB: Final = f"usr/lib/python{PYTHON}/"
# Modules that no role imports, and that would bring libraries with them: Kerberos for nis,
# Berkeley DB for _dbm, terminals for readline and curses.
_UNUSED_MODULES: Final = re.compile(
    rf"{re.escape(_STDLIB)}(lib-dynload/(nis|_dbm|readline|_curses\w*)\.|"
    r"(idlelib|lib2to3|pydoc_data|curses|ensurepip|test|turtledemo|config-3)[/-])"
)
_UNUSED_LIBRARIES: Final = re.compile(
    r"(libnsl|libtirpc|libgssapi_krb5|libkrb5|libk5crypto|libkrb5support|libkeyutils|libcom_err|"
    r"libdb-5|libreadline|libhistory|libncursesw|libtinfo|libtic|libformw|libmenuw|libpanelw|libacl|"
    r"libselinux|libpcre2|libmd|libmvec|libthread_db|libnss_compat|libnss_hesiod|libmemusage|"
    r"libpcprofile|libBrokenLocale|libc_malloc_debug|libSegFault)[.\-]"
)
_PROGRAMS: Final = frozenset({f"usr/bin/python{PYTHON}"})
_RELEASE: Final = frozenset({"usr/lib/os-release", "etc/os-release", "etc/debian_version"})
_CERTIFICATES: Final = "usr/share/ca-certificates/mozilla/"
_BUNDLE: Final = "etc/ssl/certs/ca-certificates.crt"
# Debian's packages may still name these; in the image they are links into usr.
_MERGED: Final = ("bin", "lib", "lib64", "sbin")


@dataclass(frozen=True, slots=True, kw_only=True)
class DebianPackage:
    """A package of which the image has files."""

    name: str
    version: str
    architecture: str
    source: str
    sha256: str
    control: str


def packages_key() -> str:
    """Return a name for what is fetched: a folder of packages is only good for the same."""
    return hashlib.sha256(",".join(_WANTED).encode()).hexdigest()[:12]


def fetch(platform: Platform, folder: Path) -> list[Path]:
    """Fetch the packages to *folder* and return them in order.

    Raises:
        CommandError: mmdebstrap is missing or has failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    copy = f'cp "$1"/var/cache/apt/archives/*.deb {folder.resolve()}/'
    run(
        [
            *("mmdebstrap", "--quiet", "--variant=extract", f"--architectures={platform.name}"),
            *(f"--include={','.join(_WANTED)}", f"--extract-hook={copy}", "--format=null"),
            *(SUITE, "-"),
        ]
    )
    return sorted(folder.glob("*.deb"))


def unpack(packages: Sequence[Path], platform: Platform, root: Path) -> list[DebianPackage]:
    """Unpack what is kept of *packages* into *root*; return the packages that this leaves.

    Raises:
        CommandError: dpkg-deb is missing, or a package cannot be read.
    """
    with tempfile.TemporaryDirectory() as certificates:
        kept = [
            _describe(package)
            for package in sorted(packages)
            if _unpack_one(package, platform, root, Path(certificates))
        ]
        _write_bundle(Path(certificates), root)
    for name in _MERGED:
        if (root / "usr" / name).is_dir():
            (root / name).symlink_to(f"usr/{name}")
    _write_accounts(root)
    for found in kept:
        _write_status(found, root)
    return kept


def _unpack_one(package: Path, platform: Platform, root: Path, certificates: Path) -> bool:
    """Unpack one package; report whether it has a file that is needed, beside its licence."""
    data = run(["dpkg-deb", "--fsys-tarfile", str(package)])
    needed = False
    licences = []
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for member in tar:
            path = merged(member.name)
            if member.isdir():
                continue
            if path.startswith(_CERTIFICATES):
                _write(tar, member, certificates / PurePosixPath(path).name)
                needed = True
            elif path.startswith("usr/share/doc/") and path.endswith("/copyright"):
                licences.append((member, path))
            elif is_kept(path, platform):
                _write(tar, member, root / path)
                needed = True
        for member, path in licences if needed else ():
            _write(tar, member, root / path)
    return needed


def merged(name: str) -> str:
    """Return the path of a package's file in a system where /bin, /lib and /sbin are in /usr."""
    path = name.removeprefix("./").lstrip("/")
    first = path.partition("/")[0]
    return f"usr/{path}" if first in _MERGED else path


def is_kept(path: str, platform: Platform) -> bool:
    """Report whether the image has the file *path* of a Debian package."""
    if path in _PROGRAMS or path in _RELEASE or path == platform.loader:
        return True
    if path.startswith(_STDLIB):
        return not _UNUSED_MODULES.match(path)
    folder, _, name = path.rpartition("/")
    return (
        folder == f"usr/lib/{platform.triplet}"
        and ".so" in name
        and not _UNUSED_LIBRARIES.match(name)
    )


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if member.issym():
        target.symlink_to(member.linkname)
        return
    found = tar.extractfile(member)  # of a hard link, what it leads to
    if found is not None:
        target.write_bytes(found.read())
        target.chmod(member.mode)


def _describe(package: Path) -> DebianPackage:
    control = run(["dpkg-deb", "--field", str(package)]).decode()
    fields = Parser().parsestr(control)
    return DebianPackage(
        name=fields["Package"],
        version=fields["Version"],
        architecture=fields["Architecture"],
        source=fields.get("Source", fields["Package"]).partition(" ")[0],
        sha256=hashlib.sha256(package.read_bytes()).hexdigest(),
        control=control,
    )


def _write_bundle(certificates: Path, root: Path) -> None:
    """Write all authorities into one file, as update-ca-certificates does."""
    bundle = root / _BUNDLE
    bundle.parent.mkdir(parents=True, exist_ok=True)
    texts = [path.read_text().strip() for path in sorted(certificates.iterdir())]
    bundle.write_text("".join(f"{text}\n" for text in texts))
    bundle.chmod(0o644)
    link = root / "usr/lib/ssl/cert.pem"  # where Debian's OpenSSL looks
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(f"/{_BUNDLE}")


def _write_accounts(root: Path) -> None:
    etc = root / "etc"
    accounts = (("root", 0, "/root"), ("nobody", 65534, "/nonexistent"), ("fracgpu", 65532, "/"))
    (etc / "passwd").write_text(
        "".join(f"{name}:x:{uid}:{uid}::{home}:/nonexistent\n" for name, uid, home in accounts)
    )
    (etc / "group").write_text("".join(f"{name}:x:{gid}:\n" for name, gid, _ in accounts))
    (etc / "nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files dns\n")
    (root / "tmp").mkdir()


def _write_status(package: DebianPackage, root: Path) -> None:
    """Write the package's control file where scanners of images without dpkg look for it."""
    folder = root / "var/lib/dpkg/status.d"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / package.name).write_text(package.control)


def has_mmdebstrap() -> bool:
    """Report whether this machine has the programs that this module runs."""
    return shutil.which("mmdebstrap") is not None and shutil.which("dpkg-deb") is not None
