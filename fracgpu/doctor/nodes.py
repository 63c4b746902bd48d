"""Whether nodes share their cards: agents, driver, runtime, other plugins, taints and load."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from fracgpu import names
from fracgpu.cards.annotations import read_cards, read_foreign, read_load_time, read_uuids
from fracgpu.cards.card import HEAT_MAX_AGE, Health
from fracgpu.cards.node_marks import shares
from fracgpu.cards.other_plugins import offered_by_others
from fracgpu.doctor.cures import change, create_anew
from fracgpu.doctor.facts import (
    Facts,
    Json,
    annotations_of,
    condition_of,
    is_ready,
    known,
    labels_of,
    limits_memory,
    name_of,
    template_of,
    waiting,
)
from fracgpu.doctor.finding import Check, Finding, error, warning
from fracgpu.doctor.installation import (
    AGENT,
    APP_LABEL,
    let_agents_in,
    outside,
    role_of,
    workload_of,
)
from fracgpu.doctor.ranking import (
    ALL_AGENTS,
    INSTALLED,
    SHARING_NODES,
    agent_on,
    cards_of,
    pod,
    pods_of,
    runtime_class_of,
    workload,
)
from fracgpu.errors import WireError, counted, shorten
from fracgpu.k8s.node import Taint
from fracgpu.k8s.node_affinity import EXCLUDING_EFFECTS, NodeRules, Toleration
from fracgpu.state.allocation import cards_in
from fracgpu.state.pod_info import PodInfo

_DRIVER_REASONS: Final = ("CardsUnavailable", "NoCardToShare")
_RUNTIME_REASON: Final = "RuntimeUnknown"
_AMD: Final = "amd.com/"
_HAMI: Final = "hami.io/node-"  # HAMi's device plugin registers its cards in such annotations
# Tolerated by every DaemonSet's pods, or gone by themselves.
_KUBERNETES_OWN: Final = "node.kubernetes.io/"
_NEEDS: Final = "docs/node.md#what-the-node-needs"
_RUNTIME_CURE: Final = (
    "let the agent reach the runtime's sockets (--cri-socket, --nri-socket; platform in "
    "docs/install.md#platforms); containerd 1.7 has CDI and NRI off until its configuration turns "
    "them on (docs/install.md#the-container-runtime)"
)


def _sharing(facts: Facts) -> list[Json]:
    return [node for node in known(facts.nodes) if shares(labels_of(node))]


def _some_share(facts: Facts) -> Iterator[Finding]:
    for node in known(facts.nodes):
        text = labels_of(node).get(names.SHARE_LABEL, "false")
        if text not in ("true", "false"):
            set_it = f"kubectl label node {name_of(node)} {names.SHARE_LABEL}=true --overwrite"
            yield warning(
                f"node {name_of(node)} shares no card: its label {names.SHARE_LABEL} is "
                f"{shorten(text)!r}; want 'true'",
                cure=set_it,
            )
    if not _sharing(facts):
        yield warning(
            "no node shares its cards",
            cure=f"kubectl label node NAME {names.SHARE_LABEL}=true",
            breaks=[SHARING_NODES],
        )


def _agents(facts: Facts) -> Iterator[Finding]:
    pods = [each for each in known(facts.pods) if labels_of(each).get(APP_LABEL) == AGENT]
    sharing = _sharing(facts)
    if sharing:
        outside(facts)
    missing = list(filter(None, (_agent_missing(facts, node, pods) for node in sharing)))
    for finding in missing:
        everywhere = (ALL_AGENTS,) if len(missing) == len(sharing) else ()
        yield replace(finding, breaks=(*finding.breaks, *everywhere))


def _agent_missing(facts: Facts, node: Json, pods: Sequence[Json]) -> Finding | None:
    name, kubectl = name_of(node), f"kubectl -n {facts.system_namespace}"
    here = [each for each in pods if each.get("spec", {}).get("nodeName") == name]
    if not here:
        return error(
            f"node {name} has the label {names.SHARE_LABEL}=true and no agent",
            cure=f"{kubectl} describe daemonset -l {APP_LABEL}={AGENT}; where Pod Security is "
            f"enforced by default, {let_agents_in(facts)}",
            breaks=[agent_on(name)],
            needs=[_taint_of(name), workload(AGENT), runtime_class_of(AGENT), INSTALLED],
        )
    if any(is_ready(each) for each in here):
        return None
    agent = name_of(here[0])
    return error(
        f"the agent {agent} on node {name} is not ready",
        cure=f"{kubectl} describe pod {agent}; {kubectl} logs {agent}",
        breaks=[agent_on(name)],
        needs=[pod(agent), pods_of(AGENT), cards_of(name)],
    )


def _taint_of(node: str) -> str:
    return f"toleration of {node}'s taint"


def _logs(facts: Facts, node: str) -> str:
    """Return the command that shows the log of a node's agent."""
    kubectl = f"kubectl -n {facts.system_namespace}"
    pod = f"-l {APP_LABEL}={AGENT} --field-selector spec.nodeName={node}"
    return f"{kubectl} logs $({kubectl} get pods -o name {pod})"


def _driver(facts: Facts) -> Iterator[Finding]:
    for node in _sharing(facts):
        condition = condition_of(node, names.SHARING_CONDITION)
        name = name_of(node)
        logs = _logs(facts, name)
        if condition is None:
            yield error(
                f"node {name} has no condition {names.SHARING_CONDITION}: its agent has not "
                "reported its cards yet",
                cure=logs,
                needs=[agent_on(name)],
            )
        elif condition.get("status") != "True" and condition.get("reason") in _DRIVER_REASONS:
            yield error(
                f"node {name} shares no card: {condition.get('message')}",
                cure=f"run nvidia-smi on the node, and see {_NEEDS}; then {logs}; on nodes without "
                "cards simulatedCards.enabled=true simulates some",
                breaks=[cards_of(name)],
            )
        elif condition.get("reason") == names.AGENT_NOT_REGISTERED:
            yield warning(
                f"node {name} takes no new pods: {condition.get('message')}",
                cure=f"nothing while its agent or kubelet is replaced; if it stays so, {logs}",
            )
        else:
            yield from _unhealthy(node, kubectl=f"kubectl -n {facts.system_namespace}")


def _write_anew(node: str, *, kubectl: str) -> str:
    """Return what makes an agent write its annotations anew; nobody else may remove them."""
    pods = f"-l {APP_LABEL}={AGENT} --field-selector spec.nodeName={node}"
    return f"{kubectl} delete pod {pods}: the next agent writes it anew"


def _unhealthy(node: Json, *, kubectl: str) -> Iterator[Finding]:
    if offered_by_others(node.get("status", {}).get("allocatable") or {}):
        return  # then all of its cards count as unhealthy, for the reason that another check names
    try:
        cards = read_cards(annotations_of(node).get(names.NODE_CARDS, ""))
    except WireError as problem:
        yield error(
            f"node {name_of(node)}: {problem}; nothing is placed there",
            cure=_write_anew(name_of(node), kubectl=kubectl),
        )
        return
    taken_out = read_uuids(annotations_of(node).get(names.NODE_OUT_OF_SERVICE, ""))
    for key in (names.NODE_OUT_OF_SERVICE, names.NODE_DRAIN):
        unknown = read_uuids(annotations_of(node).get(key, "")) - {card.uuid for card in cards}
        if unknown:
            yield warning(
                f"the annotation {key} of node {name_of(node)} has no effect for "
                f"{shorten(min(unknown))}: it has no such card",
                cure=f"write UUIDs that fracgpu cards --node {name_of(node)} -o wide shows",
            )
    for card in cards:
        if card.health is not Health.HEALTHY:
            yield warning(
                f"card {card.index} ({card.uuid}) of node {name_of(node)} is unhealthy: "
                f"{card.health_reason}",
                cure=f"once it is well, take it out of the annotation {names.NODE_OUT_OF_SERVICE}"
                if card.uuid in taken_out
                else "docs/node-reference.md lists XID errors; a card that is to be "
                f"replaced is taken out by the annotation {names.NODE_OUT_OF_SERVICE}",
            )


def _runtime(facts: Facts) -> Iterator[Finding]:
    for node in _sharing(facts):
        condition, name = condition_of(node, names.SHARING_CONDITION), name_of(node)
        if condition is not None and condition.get("reason") == _RUNTIME_REASON:
            yield error(f"node {name}: {condition.get('message')}", cure=_RUNTIME_CURE)
        elif annotations_of(node).get(names.NODE_IDENTITY) == names.IDENTITY_LISTED:
            yield warning(
                f"node {name} has no NRI: a container whose slots another one may have as well, or "
                "an init container with cards of its own, is refused",
                cure=_RUNTIME_CURE,
            )


def _second_accountant(facts: Facts) -> Iterator[Finding]:
    for node in _sharing(facts):
        others = offered_by_others(node.get("status", {}).get("allocatable") or {})
        name = name_of(node)
        if others:
            listed = ", ".join(f"{resource} ({amount})" for resource, amount in others.items())
            operator = f"kubectl label node {name} nvidia.com/gpu.deploy.device-plugin=false "
            operator += "(NVIDIA's GPU Operator)"
            if any(resource.startswith(_AMD) for resource in others):
                operator = (
                    "devicePlugin.enableDevicePlugin: false in the DeviceConfig whose selector "
                )
                operator += "has the node (AMD's GPU Operator)"
            yield error(
                f"node {name} offers its cards twice: another device plugin counts {listed}, so "
                "FracGPU shares none there",
                cure=f"{operator}, or keep the other plugin's DaemonSet off the node by its "
                "nodeSelector",
            )
        elif any(key.startswith(_HAMI) for key in annotations_of(node)):
            yield warning(
                f"node {name} has annotations of HAMi's device plugin, which may count its cards",
                cure="keep HAMi's DaemonSet off the node by its nodeSelector, and remove its "
                "annotations",
            )


def _taints(node: Json) -> tuple[Taint, ...]:
    return tuple(
        Taint(key=taint["key"], value=taint.get("value") or "", effect=taint["effect"])
        for taint in node.get("spec", {}).get("taints") or ()
        if taint["effect"] in EXCLUDING_EFFECTS and not taint["key"].startswith(_KUBERNETES_OWN)
    )


def _rules(spec: Json) -> NodeRules:
    return NodeRules(
        tolerations=tuple(
            Toleration(
                key=each.get("key") or "",
                operator=each.get("operator") or "",
                value=each.get("value") or "",
                effect=each.get("effect") or "",
            )
            for each in spec.get("tolerations") or ()
        )
    )


def _words(taint: Taint) -> str:
    return f"{taint.key}{'=' if taint.value else ''}{taint.value}:{taint.effect}"


def _tolerated(facts: Facts) -> Iterator[Finding]:
    agent = workload_of(known(facts.daemon_sets), AGENT)
    rules = _rules(template_of(agent).get("spec", {})) if agent is not None else None
    asking = [*filter(limits_memory, waiting(facts))]
    for node in _sharing(facts):
        for taint in _taints(node):
            name = name_of(node)
            if agent is not None and rules is not None and not rules.tolerates([taint]):
                yield error(
                    f"the agent does not tolerate the taint {_words(taint)} of node {name}",
                    cure=_tolerate(agent, taint) + f", or kubectl taint node {name} {taint.key}-",
                    breaks=[_taint_of(name)],
                )
            tolerating = (NodeRules(tolerations=pod.tolerations) for pod in asking)
            if asking and not any(rules.tolerates([taint]) for rules in tolerating):
                yield warning(
                    f"no pod that waits for a card tolerates the taint {_words(taint)} of "
                    f"node {name}",
                    cure=f"add the toleration to the pods, or kubectl taint node {name} "
                    f"{taint.key}-; fracgpu explain names it for each pod",
                )


def _tolerate(agent: Json, taint: Taint) -> str:
    ours = {"key": taint.key, "operator": "Exists", "effect": taint.effect}
    wanted = [*(template_of(agent).get("spec", {}).get("tolerations") or ()), ours]
    return change(
        agent,
        f"--set-json 'deviceplugin.tolerations={json.dumps(wanted)}'",
        otherwise=f"add the toleration to DaemonSet {name_of(agent)} in your kustomization.yaml",
    )


def _strangers(facts: Facts) -> Iterator[Finding]:
    for node in _sharing(facts):
        name = name_of(node)
        try:
            foreign = read_foreign(annotations_of(node).get(names.NODE_FOREIGN, ""))
        except WireError as problem:
            yield error(
                f"node {name}: {problem}; nothing is placed there",
                cure=_write_anew(name, kubectl=f"kubectl -n {facts.system_namespace}"),
            )
            continue
        for uuid, mib in foreign.items():
            if mib:
                yield warning(
                    f"card {uuid} of node {name}: {mib} MiB are used by processes without a share",
                    cure="nvidia-smi on the node names them; a pod that asked for nothing sees "
                    "cards where NVIDIA's runtime is the default: docs/security.md says how to "
                    "close that",
                )


def _cards_of_pods(facts: Facts) -> Iterator[Finding]:
    by_node: dict[str, list[PodInfo]] = {}
    for each in known(facts.requesting):
        if not each.record.terminating:
            by_node.setdefault(each.record.node, []).append(each)
    for node in _sharing(facts):
        name = name_of(node)
        try:
            cards = read_cards(annotations_of(node).get(names.NODE_CARDS, ""))
        except WireError:
            continue  # another check says so
        there = {card.uuid for card in cards}
        lost = [
            (pod, min(gone))
            for pod in by_node.get(name, ())
            if (gone := cards_in(pod.record.assignment or {}) - there)
        ]
        if lost:
            first, card = lost[0]
            yield error(
                f"{counted(len(lost), 'pod')} of node {name} cannot start a container again, such "
                f"as {first.record.key}: assigned {card}, which the node does not have any more",
                cure=f"{create_anew(first)}, on a card that is there; nothing if the card is to "
                "come back",
                needs=[cards_of(name), agent_on(name)],
            )


def _load(facts: Facts) -> Iterator[Finding]:
    for node in _sharing(facts):
        notes, name = annotations_of(node), name_of(node)
        if not _figures(notes.get(names.NODE_HEAT, "")):
            continue
        try:
            at = read_load_time(notes.get(names.NODE_LOAD_TIME, ""))
        except WireError as problem:
            observed = f"node {name}: its cards' load has no time that can be read ({problem})"
        else:
            if facts.now - at < HEAT_MAX_AGE:
                continue
            minutes = int((facts.now - at).total_seconds() // 60)
            observed = (
                f"the load of node {name} was last confirmed {counted(minutes, 'minute')} ago: its "
                "cards count as the hottest"
            )
        yield warning(
            observed,
            cure=f"the agent writes it every five minutes; {_logs(facts, name)}",
            needs=[agent_on(name)],
        )


def _figures(text: str) -> bool:
    try:
        found: Any = json.loads(text or "{}")
    except ValueError:
        return True
    return bool(found)


def _runtime_classes(facts: Facts) -> Iterator[Finding]:
    there = {name_of(body) for body in known(facts.runtime_classes)}
    for kind, workloads in (
        ("DaemonSet", known(facts.daemon_sets)),
        ("Deployment", known(facts.deployments)),
    ):
        for body in workloads:
            wanted = template_of(body).get("spec", {}).get("runtimeClassName")
            if wanted and wanted not in there:
                role = role_of(body).removeprefix("fracgpu-")
                unset = change(
                    body,
                    f"--set {role}.runtimeClassName=",
                    otherwise="take runtimeClassName out of your kustomization.yaml",
                )
                yield error(
                    f"{kind} {name_of(body)} names the runtime class {wanted}, which the "
                    "cluster does not have: its pods are refused",
                    cure="kubectl get runtimeclasses; install the NVIDIA container toolkit's "
                    f"{wanted}, or {unset}",
                    breaks=[runtime_class_of(name_of(body))],
                )


CHECKS: Final = (
    Check(name="nodes", title="At least one node shares its cards", find=_some_share),
    Check(name="agents", title="Every sharing node has a running agent", find=_agents),
    Check(name="driver", title="Every agent reads its cards, and they are healthy", find=_driver),
    Check(name="runtime", title="Every node's runtime says whose container starts", find=_runtime),
    Check(
        name="runtime-class",
        title="Every runtime class that is named exists",
        find=_runtime_classes,
    ),
    Check(
        name="second-accountant",
        title="Nobody else counts the cards of a sharing node",
        find=_second_accountant,
    ),
    Check(name="taints", title="Taints of sharing nodes are tolerated", find=_tolerated),
    Check(
        name="assigned-cards",
        title="Every pod's cards are on its node",
        find=_cards_of_pods,
    ),
    Check(name="strangers", title="Only holders of a share use cards", find=_strangers),
    Check(name="load", title="The cards' load is up to date", find=_load),
)
