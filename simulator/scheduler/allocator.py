"""Which devices of a node a claim gets: the first that fit, with shares of each device's capacity.

Only what is asked for here is served: exact counts of devices of one node, no constraints, no
partitions, no admin access. Source: k8s.io/dynamic-resource-allocation structured/internal.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Final, NamedTuple

from fracgpu.k8s import quantity
from simulator.scheduler.selectors import CelError, selects

if TYPE_CHECKING:
    from simulator.objects import Json

_KEEPS_AWAY: Final = frozenset({"NoSchedule", "NoExecute"})
_KIBI: Final = 1024


class NoSuchClassError(Exception):
    """A request names a class that does not exist; ``str()`` is kube-scheduler's reason."""


class DeviceId(NamedTuple):
    """A device's name, which is unique in its pool."""

    driver: str
    pool: str
    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """The devices of all nodes, and what claims have of them.

    Attributes:
        by_node: those of each node, in the order in which they are tried.
        taken: device → capacity → amount; a device that cannot be shared is taken by being there.
        classes: DeviceClasses by name.
    """

    by_node: Mapping[str, Sequence[tuple[DeviceId, Json]]]
    taken: Mapping[DeviceId, Mapping[str, Fraction]]
    classes: Mapping[str, Json]


def devices_of(slices: Iterable[Json]) -> Mapping[str, Sequence[tuple[DeviceId, Json]]]:
    """Return each node's devices: those of the newest generation of each pool that is complete."""
    pools: dict[tuple[str, str], list[Json]] = defaultdict(list)
    for each in slices:
        pools[each["spec"]["driver"], each["spec"]["pool"]["name"]].append(each["spec"])
    found: dict[str, list[tuple[DeviceId, Json]]] = defaultdict(list)
    for (driver, pool), specs in sorted(pools.items()):
        newest = max(spec["pool"]["generation"] for spec in specs)
        current = [spec for spec in specs if spec["pool"]["generation"] == newest]
        if len(current) != current[0]["pool"]["resourceSliceCount"]:
            continue
        for spec in current:
            found[spec.get("nodeName", "")] += [
                (DeviceId(driver, pool, device["name"]), device)
                for device in spec.get("devices") or ()
            ]
    return found


def taken_by(claims: Iterable[Json]) -> dict[DeviceId, dict[str, Fraction]]:
    """Return what allocated claims have of each device."""
    taken: dict[DeviceId, dict[str, Fraction]] = {}
    for claim in claims:
        allocation = (claim.get("status") or {}).get("allocation") or {}
        for result in (allocation.get("devices") or {}).get("results") or ():
            _take(taken, result)
    return taken


def _take(taken: dict[DeviceId, dict[str, Fraction]], result: Json) -> None:
    of = taken.setdefault(DeviceId(result["driver"], result["pool"], result["device"]), {})
    for name, amount in (result.get("consumedCapacity") or {}).items():
        of[name] = of.get(name, Fraction(0)) + quantity.parse(amount)


def allocate(claims: Sequence[Json], node: str, devices: Devices) -> list[Json] | None:
    """Return the ``status.allocation`` of each of a pod's claims on *node*; None if one has none.

    Raises:
        CelError: a selector cannot be evaluated.
        NoSuchClassError: a class is missing.
    """
    taken = {device: dict(amounts) for device, amounts in devices.taken.items()}
    found = []
    for claim in claims:
        requests = [_Request.read(each, devices) for each in claim["spec"]["devices"]["requests"]]
        results = _first_fit(requests, devices.by_node.get(node, ()), taken)
        if results is None:
            return None
        for result in results:
            _take(taken, result)
        found.append({"devices": {"results": results}, "nodeSelector": _only(node)})
    return found


def _only(node: str) -> Json:
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    return {"nodeSelectorTerms": [{"matchFields": [field]}]}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """One request of a claim, with the selectors of its class."""

    name: str
    count: int
    wanted: Mapping[str, str]
    expressions: Sequence[str]
    tolerations: Sequence[Json]

    @classmethod
    def read(cls, request: Json, devices: Devices) -> _Request:
        exactly = request.get("exactly")
        if exactly is None or exactly["allocationMode"] != "ExactCount":
            raise CelError(f"this simulator allocates exact counts, not request {request['name']}")
        named = exactly["deviceClassName"]
        if named not in devices.classes:
            text = f"request {request['name']}: device class {named} does not exist"
            raise NoSuchClassError(text)
        of_class = (devices.classes[named].get("spec") or {}).get("selectors") or ()
        return cls(
            name=request["name"],
            count=exactly["count"],
            wanted=(exactly.get("capacity") or {}).get("requests") or {},
            expressions=[
                each["cel"]["expression"] for each in (*of_class, *(exactly.get("selectors") or ()))
            ],
            tolerations=exactly.get("tolerations") or (),
        )

    def fits(self, of: DeviceId, device: Json) -> bool:
        """Report whether a device may be given at all."""
        if not all(selects(each, of.driver, device) for each in self.expressions):
            return False
        return all(
            taint["effect"] not in _KEEPS_AWAY
            or any(_tolerates(each, taint) for each in self.tolerations)
            for taint in device.get("taints") or ()
        )


def _tolerates(toleration: Json, taint: Json) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if toleration.get("key") not in (None, "", taint["key"]):
        return False
    equal = toleration.get("value", "") == taint.get("value", "")
    return toleration.get("operator") == "Exists" or equal


def _first_fit(
    requests: Sequence[_Request],
    devices: Sequence[tuple[DeviceId, Json]],
    taken: Mapping[DeviceId, Mapping[str, Fraction]],
) -> list[Json] | None:
    """Return the results of all requests, by trying devices in order and going back."""
    places = [request for request in requests for _ in range(request.count)]
    fitting = {
        request.name: [(of, device) for of, device in devices if request.fits(of, device)]
        for request in requests
    }

    def search(results: list[Json]) -> list[Json] | None:
        if len(results) == len(places):
            return results
        request = places[len(results)]
        held = {device: dict(amounts) for device, amounts in taken.items()}
        for result in results:
            _take(held, result)
        mine = {
            DeviceId(result["driver"], result["pool"], result["device"])
            for result in results
            if result["request"] == request.name
        }
        for of, device in fitting[request.name]:
            if of in mine:  # one request gets each device once; two may share one
                continue
            share = _share(request, of, device, held.get(of))
            if share is not None and (found := search([*results, share])) is not None:
                return found
        return None

    return search([])


def _share(
    request: _Request, of: DeviceId, device: Json, taken: Mapping[str, Fraction] | None
) -> Json | None:
    """Return the result that gives *request* a share of a device, or all of it; None: no room."""
    base = {"request": request.name, "driver": of.driver, "pool": of.pool, "device": of.device}
    capacity = device.get("capacity") or {}
    if not request.wanted.keys() <= capacity.keys():
        return None
    if not device.get("allowMultipleAllocations"):
        fits = all(
            quantity.parse(text) <= quantity.parse(capacity[name]["value"])
            for name, text in request.wanted.items()
        )
        return base if taken is None and fits else None
    consumed = {}
    for name, each in sorted(capacity.items()):
        amount = _rounded(request.wanted.get(name), each)
        left = quantity.parse(each["value"]) - (taken or {}).get(name, Fraction(0))
        if quantity.parse(amount) > left:
            return None
        consumed[name] = amount
    return {**base, "shareID": str(uuid.uuid4()), "consumedCapacity": consumed}


def _rounded(wanted: str | None, capacity: Json) -> str:
    """Return what is consumed for an amount: at least the minimum, in whole steps above it."""
    policy = capacity.get("requestPolicy") or {}
    if wanted is None:
        return str(policy.get("default") or capacity["value"])
    valid = policy.get("validRange") or {}
    amount, least = quantity.parse(wanted), quantity.parse(valid.get("min") or "0")
    if amount <= least:
        return quantity.canonical(valid.get("min") or wanted)
    step = quantity.parse(valid.get("step") or "0")
    over = (amount - least) % step if step else Fraction(0)
    if not over:
        return quantity.canonical(wanted)
    rounded = amount + step - over
    if rounded % _KIBI:
        return quantity.canonical(str(rounded.numerator))
    return quantity.canonical(f"{rounded / _KIBI}Ki")


def nodes_of(allocation: Json) -> Iterator[str]:
    """Yield the nodes for which a claim has been allocated."""
    for term in (allocation.get("nodeSelector") or {}).get("nodeSelectorTerms") or ():
        for field in term.get("matchFields") or ():
            yield from field["values"]
