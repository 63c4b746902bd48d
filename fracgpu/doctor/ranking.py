"""Which findings follow from which: a cause is listed once, with its consequences below it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fracgpu.doctor.finding import Check, Finding, Result, Severity

INSTALLED: Final = "installation"
WEBHOOK_ENDPOINTS: Final = "endpoints of the webhook"
WEBHOOK_REGISTERED: Final = "registration of the webhook"
WEBHOOK_TRUST: Final = "trust in the webhook"
CERTIFICATES: Final = "certificates"
PROFILE: Final = "profile of kube-scheduler"
EXTENDER_LEADER: Final = "leader of the extender"
SHARING_NODES: Final = "nodes that share"
ALL_AGENTS: Final = "all agents"


def workload(name: str) -> str:
    """Return the word for a Deployment or DaemonSet of ours, in what a finding breaks or needs."""
    return f"workload {name}"


def pods_of(workload_name: str) -> str:
    """Return the word for the pods of a workload of ours, if none of them runs."""
    return f"pods of {workload_name}"


def pod(name: str) -> str:
    """Return the word for one pod of ours."""
    return f"pod {name}"


def runtime_class_of(workload_name: str) -> str:
    """Return the word for the runtime class that a workload of ours names."""
    return f"runtime class of {workload_name}"


def cards_of(node: str) -> str:
    """Return the word for the cards that a node's agent can read."""
    return f"cards of {node}"


def agent_on(node: str) -> str:
    """Return the word for a node's agent."""
    return f"agent on {node}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A finding, and the check that found it."""

    check: Check
    finding: Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A finding that no other explains, and all those that it explains, in their order."""

    check: Check
    finding: Finding
    consequences: tuple[Found, ...] = ()

    @property
    def severity(self) -> Severity:
        """How bad it is: as the worst of its consequences."""
        found = (self.finding, *(each.finding for each in self.consequences))
        return min((each.severity for each in found), key=list(Severity).index)


def rank(results: Sequence[Result]) -> tuple[Cause, ...]:
    """Return every finding once: as a cause, or as a consequence of the cause that explains it.

    One finding explains another if it breaks what the other needs. The worst causes come first,
    then those that explain most, then those that came first in *results*.
    """
    found = [
        Found(check=result.check, finding=finding)
        for result in results
        for finding in result.findings
    ]
    broken_by: dict[str, int] = {}
    for at, each in enumerate(found):
        for thing in each.finding.breaks:
            broken_by.setdefault(thing, at)
    below: dict[int, list[Found]] = {}
    for at, each in enumerate(found):
        root = _root(at, found, broken_by)
        below.setdefault(root, [])
        if root != at:
            below[root].append(each)
    causes = [
        Cause(check=found[at].check, finding=found[at].finding, consequences=tuple(explained))
        for at, explained in sorted(below.items())
    ]
    severities = list(Severity)
    return tuple(
        sorted(
            causes, key=lambda cause: (severities.index(cause.severity), -len(cause.consequences))
        )
    )


def _root(at: int, found: Sequence[Found], broken_by: dict[str, int]) -> int:
    """Return the position of what explains a finding in the end; where that is a circle, the first.

    That is the finding itself if nothing explains it.
    """
    passed = [at]
    while True:
        needs = found[passed[-1]].finding.needs
        cause = next((broken_by[thing] for thing in needs if thing in broken_by), passed[-1])
        if cause == passed[-1]:
            return cause
        if cause in passed:
            return min(passed[passed.index(cause) :])
        passed.append(cause)
