"""``fracgpu run ROLE``: load the role's settings, build the role and run it until stopped."""

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import structlog

from cli.flags import Parser
from cli.main import CALLED_WRONG, DONE, FAILED
from component.role_process import run_service
from fracgpu.spelling import did_you_mean
from process import logs
from process.lifecycle import Service
from process.settings import HelpRequested, ProcessSettings, SettingsError, describe, load

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """Where a role's parts are, by name, so that only the role that runs is imported."""

    settings: str
    summary: str
    parts: Callable[[Any], Mapping[str, object]] = lambda _: {}
    """Return the arguments of ``build`` besides the settings."""


class BadPart(Exception):  # noqa: N818 - the name says what is wrong
    """A part that the settings name does not exist."""


def device_plugin_parts(settings: Any) -> Mapping[str, object]:
    """Return the cards: real ones of any vendor, or simulated ones from a file."""
    source: str = settings.cards
    kind, _, file = source.partition(":")
    if source in ("auto", "nvml", "amd"):
        opened = importlib.import_module("deviceplugin.cards.real").open_cards
        return {"cards": opened(settings)}
    if kind == "simulated" and file:
        opened = importlib.import_module("simulator.cards.simulated_cards").open_cards
        return {"cards": opened(Path(file), node=settings.node_name)}
    raise BadPart(f"--cards is {source!r}; want 'auto', 'nvml', 'amd' or 'simulated:FILE'")


ROLES: Final[Mapping[str, Role]] = {
    "webhook": Role(settings="WebhookSettings", summary="translate or refuse pods' requests"),
    "scheduler": Role(settings="SchedulerSettings", summary="choose the card and bind the pod"),
    "deviceplugin": Role(
        settings="DevicePluginSettings",
        summary="give containers their cards, report the node's cards",
        parts=device_plugin_parts,
    ),
    "rebalancer": Role(settings="RebalancerSettings", summary="move pods off hot cards"),
    "certs": Role(settings="CertsSettings", summary="issue certificates and renew them"),
}


def main(argv: Sequence[str]) -> int:
    """Run the role named first in *argv* with the flags after it; return the exit code."""
    if not argv or argv[0] in ("--help", "-h"):
        print(usage(), file=sys.stdout if argv else sys.stderr)
        return DONE if argv else CALLED_WRONG
    name, flags = argv[0], argv[1:]
    role = ROLES.get(name)
    if role is None:
        hint = did_you_mean(name, ROLES) or f"want one of: {', '.join(ROLES)}"
        return _complain(CALLED_WRONG, f"unknown role {name!r}; {hint}")
    try:
        settings_type = vars(importlib.import_module(f"{name}.settings"))[role.settings]
        settings: ProcessSettings = load(settings_type, flags, os.environ, program=name)
        logs.configure(level=settings.log_level, json=settings.log_json)
        log.info("settings_loaded", role=name, **describe(settings))
        build: Callable[..., Service] = vars(importlib.import_module(f"{name}.service"))["build"]
        service = build(settings, **role.parts(settings))
    except HelpRequested as help_text:
        print(help_text)
        return DONE
    except SettingsError as error:
        return _complain(CALLED_WRONG, *error.mistakes)
    except BadPart as error:
        return _complain(CALLED_WRONG, str(error))
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in (name, "simulator"):
            raise
        hint = f"install the role's libraries: pip install 'fracgpu[{name}]'"
        return _complain(FAILED, f"the role {name} needs the module {error.name}; {hint}")
    return run_service(service)


def arguments() -> argparse.ArgumentParser:
    """Return a parser of the role alone; each role's flags are made from its settings."""
    parser = Parser(
        prog="fracgpu run",
        description="Run one role of the system until it is stopped. "
        "fracgpu run ROLE --help lists its flags and environment variables.",
    )
    parser.add_argument("role", choices=tuple(ROLES), metavar="ROLE", help=", ".join(ROLES))
    return parser


def usage() -> str:
    """Return the help text of ``fracgpu run``."""
    lines = ["usage: fracgpu run ROLE [flags]", ""]
    lines += [f"  {name:<13} {role.summary}" for name, role in ROLES.items()]
    lines += ["", "  fracgpu run ROLE --help lists its flags and environment variables"]
    return "\n".join(lines)


def _complain(code: int, *mistakes: str) -> int:
    for mistake in mistakes:
        print(f"fracgpu: {mistake}", file=sys.stderr)
    return code
