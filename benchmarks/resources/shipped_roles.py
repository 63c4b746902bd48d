"""The command line of a role as ``deploy/`` ships it, for a process on loopback."""

import sys
from collections.abc import Mapping
from typing import Any, Final

from simulator.demo.service_accounts import deployed
from simulator.demo.supervisor import ProcessSpec, clean_environment

# What kubelet would put into the variables of a pod. The API server refuses loopback addresses in
# an EndpointSlice; nobody calls this one.
_POD: Final = {"POD_NAME": "fracgpu-benchmark-0", "POD_IP": "192.0.2.1", "NODE_NAME": "benchmark"}


def shipped_role(role: str, flags: Mapping[str, object]) -> ProcessSpec:
    """Return the role's process with its flags and variables from ``deploy/``.

    Args:
        role: as in ``fracgpu run ROLE``.
        flags: what is different for a process on loopback: addresses, files and folders. They
            replace those of ``deploy/``.

    Raises:
        LookupError: deploy/ runs no such role.
    """
    container = shipped_container(role)
    variables = {
        variable["name"]: variable["value"]
        for variable in container.get("env", ())
        if "value" in variable
    }
    argv = _without([_expanded(word) for word in container["args"]], flags)
    argv += [f"--{name}={value}" for name, value in flags.items()]
    return ProcessSpec(
        name=role,
        argv=(sys.executable, "-m", "cli", *argv),
        env={**clean_environment(), **variables},
    )


def shipped_container(role: str) -> dict[str, Any]:
    """Return the container of ``deploy/`` that runs the role.

    Raises:
        LookupError: there is none.
    """
    for kind in ("Deployment", "DaemonSet"):
        for workload in deployed(kind):
            for container in workload["spec"]["template"]["spec"]["containers"]:
                if container.get("args", [])[:2] == ["run", role]:
                    found: dict[str, Any] = container
                    return found
    raise LookupError(f"no container of deploy/ runs the role {role}")


def _expanded(word: str) -> str:
    for name, value in _POD.items():
        word = word.replace(f"$({name})", value)
    return word


def _without(words: list[str], flags: Mapping[str, object]) -> list[str]:
    """Return the words without the given flags, written as ``--a=b`` or ``--a b``."""
    kept: list[str] = []
    rest = iter(words)
    for word in rest:
        name, equals, _ = word.removeprefix("--").partition("=")
        if word.startswith("--") and name in flags:
            if not equals:
                next(rest)
            continue
        kept.append(word)
    return kept
