"""Whether pods get their cards: kube-scheduler's configuration, and the extender that leads."""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Final

from fracgpu import names
from fracgpu.doctor.cures import install_again
from fracgpu.doctor.facts import (
    Facts,
    Json,
    NotKnownError,
    known,
    limits_memory,
    name_of,
    named,
    time_of,
    waiting,
)
from fracgpu.doctor.finding import Check, Finding, error, warning
from fracgpu.doctor.installation import SCHEDULER, outside, uses_claims
from fracgpu.doctor.ranking import EXTENDER_LEADER, INSTALLED, PROFILE, workload
from fracgpu.errors import counted

EXTENDER_LEASE: Final = "fracgpu-scheduler-extender"
LEADER_SLICE: Final = "fracgpu-scheduler-leader"
_LEADERS: Final = "-scheduler-leader"  # whatever the chart's names begin with

_ALL: Final = 100
# What the clocks of replicas, of the API server and of the caller may differ.
_SLACK: Final = timedelta(seconds=60)


def _profile(facts: Facts) -> Iterator[Finding]:
    if uses_claims(facts):
        return
    configurations = known(facts.scheduler_configurations)
    if not configurations:
        raise NotKnownError(
            "no ConfigMap in use has a KubeSchedulerConfiguration: kube-scheduler's is a file of "
            "its own; compare it with docs/scheduler.md"
        )
    cure = install_again(facts)
    for where, configuration in configurations.items():
        yield from _extender_of(where, configuration, cure)
        yield from _profiles_of(where, configuration, cure)


def _extender_of(where: str, configuration: Json, cure: str) -> Iterator[Finding]:
    ours = [each for each in configuration.get("extenders") or () if _manages_our_memory(each)]
    if not ours:
        yield error(
            f"{where} has no extender for {names.GPU_MEM}: pods get a node, and no card",
            cure=cure,
            breaks=[PROFILE],
        )
    for extender in ours:
        verbs = [verb for verb in ("filterVerb", "prioritizeVerb", "bindVerb")
                 if not extender.get(verb)]  # fmt: skip
        if verbs:
            yield error(f"{where}: the extender has no {', '.join(verbs)}", cure=cure)
        if extender.get("ignorable"):
            yield error(
                f"{where}: the extender is ignorable, so pods are placed without a card while "
                "it does not answer",
                cure=cure,
            )


def _manages_our_memory(extender: Json) -> bool:
    managed = extender.get("managedResources") or ()
    return any(resource.get("name") == names.GPU_MEM for resource in managed)


def _profiles_of(where: str, configuration: Json, cure: str) -> Iterator[Finding]:
    profiles = configuration.get("profiles") or ()
    if not any(profile.get("schedulerName") == names.SCHEDULER_NAME for profile in profiles):
        yield error(
            f"{where} has no profile {names.SCHEDULER_NAME}, which admitted pods name",
            cure=cure,
            breaks=[PROFILE],
        )
    everywhere = configuration.get("percentageOfNodesToScore")
    for profile in profiles:
        percent = profile.get("percentageOfNodesToScore", everywhere)
        if percent != _ALL:
            yield warning(
                f"{where}: profile {profile.get('schedulerName')} has percentageOfNodesToScore "
                f"{percent if percent is not None else 'unset'}; want {_ALL}, or the best node of "
                "a large cluster is not among those that the extender is asked about",
                cure="set it to 100 (docs/decisions/0008-kube-scheduler-scores-every-node.md)",
            )


def _scheduler_names(facts: Facts) -> Iterator[Finding]:
    if uses_claims(facts):
        return
    asking = [*filter(limits_memory, waiting(facts))]
    configurations = known(facts.scheduler_configurations)
    if not asking:
        return
    if not configurations:
        raise NotKnownError("kube-scheduler's configuration is a file that no object shows")
    served = {
        profile.get("schedulerName")
        for configuration in configurations.values()
        for profile in configuration.get("profiles") or ()
    }
    for name in sorted({pod.scheduler_name for pod in asking} - served):
        pods = [pod for pod in asking if pod.scheduler_name == name]
        yield error(
            f"{counted(len(pods), 'waiting pod')} with schedulerName {name}, such as "
            f"{pods[0].record.key}; the extender is asked only about pods of "
            f"{', '.join(sorted(map(str, served)))}",
            cure="leave schedulerName out of the pods, or set the key schedulerName of the "
            "configuration's admission (docs/webhook.md), or add a profile of that name",
            needs=[PROFILE],
        )


def _leads(facts: Facts) -> Iterator[Finding]:
    yield from _lease_problem(facts, EXTENDER_LEASE, SCHEDULER, "no pod gets a card")
    if uses_claims(facts):
        return
    outside(facts)
    holder = _holder(facts, EXTENDER_LEASE)
    slice_ = next((one for one in known(facts.slices) if name_of(one).endswith(_LEADERS)), None)
    name = LEADER_SLICE if slice_ is None else name_of(slice_)
    cure = f"kubectl -n {facts.system_namespace} logs -l app.kubernetes.io/name=fracgpu-scheduler"
    addresses = _addresses(slice_) if slice_ is not None else []
    if not addresses:
        what = "is missing" if slice_ is None else "has no endpoint"
        yield error(
            f"EndpointSlice {name} {what}: kube-scheduler cannot reach the extender",
            cure=cure,
            needs=[EXTENDER_LEADER, workload(SCHEDULER), INSTALLED],
        )
        return
    pod = named(known(facts.pods), holder) if holder else None
    if pod is None:
        return  # the Lease says who should be there, and that was judged above
    address = pod.get("status", {}).get("podIP")
    if address and address not in addresses:
        yield error(
            f"EndpointSlice {name} has {', '.join(addresses)}, but the leader {holder} has "
            f"{address}: kube-scheduler asks another address",
            cure=f"{cure} (leader_not_announced); kubectl -n {facts.system_namespace} delete "
            f"endpointslice {name}: the leader writes it anew",
        )


def _addresses(slice_: Json) -> list[str]:
    return [
        str(address)
        for endpoint in slice_.get("endpoints") or ()
        for address in endpoint.get("addresses") or ()
    ]


def _rebalancer_leads(facts: Facts) -> Iterator[Finding]:
    if uses_claims(facts):
        return
    yield from _lease_problem(
        facts, names.REBALANCER, names.REBALANCER, "hot cards are neither detected nor relieved"
    )


def _lease(facts: Facts, name: str) -> Mapping[str, object]:
    body = named(known(facts.leases), name)
    spec: Mapping[str, object] = (body or {}).get("spec") or {}
    return spec


def _holder(facts: Facts, name: str) -> str:
    return str(_lease(facts, name).get("holderIdentity") or "")


def _lease_problem(facts: Facts, name: str, deployment: str, effect: str) -> Iterator[Finding]:
    spec, holder = _lease(facts, name), _holder(facts, name)
    renewed = time_of(spec.get("renewTime"))
    duration_s = spec.get("leaseDurationSeconds")
    length = timedelta(seconds=duration_s if isinstance(duration_s, int) else 15)
    if not holder:
        observed = f"Lease {name} has no holder"
    elif renewed is None or facts.now - renewed > length + _SLACK:
        since = (
            f"has not renewed it since {renewed:%Y-%m-%d %H:%M:%S} UTC"
            if renewed
            else "never renewed it"
        )
        observed = f"Lease {name}: its holder {holder} {since}"
    else:
        return
    kubectl = f"kubectl -n {facts.system_namespace}"
    yield error(
        f"{observed}: {effect}",
        cure=f"{kubectl} get pods -l app.kubernetes.io/name={deployment}; "
        f"{kubectl} logs deployment/{deployment}",
        breaks=[EXTENDER_LEADER] if name == EXTENDER_LEASE else (),
        needs=[workload(deployment), INSTALLED],
    )


CHECKS: Final = (
    Check(
        name="scheduler-profile",
        title="kube-scheduler asks the extender, about every node",
        find=_profile,
    ),
    Check(
        name="scheduler-names",
        title="Waiting pods name a scheduler that asks the extender",
        find=_scheduler_names,
    ),
    Check(name="extender-leads", title="One extender leads and is reachable", find=_leads),
    Check(name="rebalancer-leads", title="One rebalancer leads", find=_rebalancer_leads),
)
