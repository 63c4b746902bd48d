"""Reads kubeconfigs, and says what is wrong with one in words for its owner.

What is found is given to kubernetes-asyncio, which is not asked to read the files itself: it passes
on the type and attribute errors of its code.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from kube.errors import AccessError
from kube.yaml_text import NotYamlError, read_yaml

_LISTS: Final = ("clusters", "contexts", "users")
_WANTED: Final = "want a kubeconfig as `kubectl config view --raw` prints it"
_MOST_NAMES: Final = 10  # in one message
# Fields of clusters and users that name a file, from the folder of their kubeconfig.
_FILES: Final = ("certificate-authority", "client-certificate", "client-key", "tokenFile")


def read_kubeconfig(paths: str, *, context: str | None) -> dict[str, Any]:
    """Return a kubeconfig of one context alone, with its cluster and user; its paths are absolute.

    Args:
        paths: of the files, as in ``$KUBECONFIG``.
        context: a name; None for the current one of the first file that has one, as in kubectl.

    Raises:
        AccessError: a file is no kubeconfig, or the context, its cluster or its user is not there;
            the message names the file, what was there and what was wanted.
    """
    found: dict[str, dict[str, Any]] = {kind: {} for kind in _LISTS}
    current: Any = None
    for path in map(Path, filter(None, paths.split(os.pathsep))):
        if not path.exists():
            continue
        content = _content(path)
        for kind in _LISTS:
            for name, entry in _entries(path, content, kind):
                found[kind].setdefault(name, entry)
        current = current or content.get("current-context")
    name = context or current
    if not name:
        raise _unusable(paths, f"has no current-context; {_one_of(found['contexts'], 'contexts')}")
    fields: dict[str, Any] = _named(paths, found, "contexts", name, f"has no context {name!r}")
    of = f"has context {name!r} with"
    cluster = fields.get("cluster")
    at = _named(paths, found, "clusters", cluster, f"{of} cluster {cluster!r}, which is not there")
    if not isinstance(at.get("server"), str):
        wanted = "want an address, e.g. https://10.0.0.1:6443"
        found_server = f"has cluster {cluster!r} with server {at.get('server')!r}"
        raise _unusable(paths, f"{found_server}; {wanted}")
    user = fields.get("user")
    users = []
    if user or at["server"].startswith("https:"):
        who = _named(paths, found, "users", user, f"{of} user {user!r}, which is not there")
        users = [{"name": user, "user": who}]
    return {
        "current-context": name,
        "contexts": [{"name": name, "context": fields}],
        "clusters": [{"name": cluster, "cluster": at}],
        "users": users,
    }


def _content(path: Path) -> dict[str, Any]:
    try:
        with path.open(encoding="utf-8") as stream:  # of a text the error would quote a line
            content = read_yaml(stream)
    except OSError as error:
        raise _unusable(path, f"cannot be read ({error.strerror}); {_WANTED}") from error
    except NotYamlError as error:
        raise _unusable(path, f"is no YAML ({str(error)[:200]}); {_WANTED}") from error
    if content is None:
        raise _unusable(path, f"is empty; {_WANTED}")
    if not isinstance(content, dict):
        raise _unusable(path, f"is a {type(content).__name__}; {_WANTED}")
    return content


def _entries(path: Path, content: dict[str, Any], kind: str) -> list[tuple[Any, dict[str, Any]]]:
    """Return the name of each entry of a list, and its fields."""
    entries = content.get(kind) or []
    field = kind.removesuffix("s")
    if not isinstance(entries, list):
        raise _unusable(path, f"has {kind} that are a {type(entries).__name__}; {_WANTED}")
    found = []
    for entry in entries:
        fields = entry.get(field) if isinstance(entry, dict) else None
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise _unusable(path, f"has an entry without a name in {kind}; {_WANTED}")
        if not isinstance(fields or {}, dict):
            raise _unusable(path, f"has a {field} {entry['name']!r} without fields; {_WANTED}")
        found.append((entry["name"], _with_paths(path, fields or {})))
    return found


def _with_paths(path: Path, fields: dict[str, Any]) -> dict[str, Any]:
    folder = path.absolute().parent
    files = {key: str(folder / fields[key]) for key in _FILES if isinstance(fields.get(key), str)}
    return fields | files


def _named(
    paths: str, found: dict[str, dict[str, Any]], kind: str, name: Any, otherwise: str
) -> dict[str, Any]:
    fields = found[kind].get(name) if isinstance(name, str) else None
    if fields is None:
        raise _unusable(paths, f"{otherwise}; {_one_of(found[kind], kind)}")
    return dict(fields)


def _one_of(found: dict[str, Any], kind: str) -> str:
    names = sorted(found)[:_MOST_NAMES]
    more = f" and {len(found) - len(names)} more" if len(found) > len(names) else ""
    return f"want one of its {kind}: {', '.join(names)}{more}" if names else f"it has no {kind}"


def _unusable(where: Path | str, problem: str) -> AccessError:
    return AccessError(f"cannot use kubeconfig {os.fspath(where)!r}: it {problem}")
