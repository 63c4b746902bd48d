"""Which containers of a pod have which requests of its claims, as kubelet reads it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from fracgpu.errors import decode_wire
from fracgpu.state.allocation import Assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimUse:
    """A claim in a pod: by container the requests that it has; none named means all of them."""

    requests: Mapping[str, tuple[str, ...]]

    def assigned(self, by_request: Assignment) -> Assignment:
        """Return by container what each request was allocated."""
        return {
            container: slices
            for container, names in self.requests.items()
            for name in names or tuple(by_request)
            if (slices := by_request.get(name))
        }

    def containers_of(self, request: str) -> tuple[str, ...]:
        """Return the containers that have a request."""
        return tuple(
            name for name, requests in self.requests.items() if not requests or request in requests
        )

    def ambiguous(self, by_request: Assignment) -> str:
        """Return a container that has several requests, whose variables would collide; or none."""
        several = (
            container
            for container, names in self.requests.items()
            if len(set(names or by_request) & by_request.keys()) > 1
        )
        return next(several, "")


class _Use(msgspec.Struct):
    name: str = ""
    request: str = ""


class _Resources(msgspec.Struct):
    claims: list[_Use] | None = None


class _Container(msgspec.Struct):
    name: str = ""
    resources: _Resources | None = None


class _PodClaim(msgspec.Struct, rename="camel"):
    name: str = ""
    resource_claim_name: str | None = None


class _Spec(msgspec.Struct, rename="camel"):
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None
    resource_claims: list[_PodClaim] | None = None


class _Status(msgspec.Struct, rename="camel"):
    resource_claim_statuses: list[_PodClaim] | None = None


class _Pod(msgspec.Struct):
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


_decoder: Final = msgspec.json.Decoder(_Pod)


def claims_of_pod(body: bytes) -> Mapping[str, ClaimUse]:
    """Return the claims of a pod by their names, those made from a template too.

    Raises:
        WireError: *body* is no pod.
    """
    pod = decode_wire(_decoder.decode, body, what="Pod")
    spec = pod.spec
    names = {
        each.name: each.resource_claim_name
        for each in (*(pod.status.resource_claim_statuses or ()), *(spec.resource_claims or ()))
        if each.resource_claim_name
    }
    uses = [
        (container.name, use)
        for container in (*(spec.init_containers or ()), *(spec.containers or ()))
        for use in (container.resources and container.resources.claims) or ()
    ]
    # Two entries of a pod may name one claim.
    found: dict[str, dict[str, tuple[str, ...]]] = {claim: {} for claim in names.values()}
    for container, use in uses:
        requests = found.get(names.get(use.name, ""), {})
        requests[container] = (
            *requests.get(container, ()),
            *([use.request] if use.request else []),
        )
    return {claim: ClaimUse(requests=requests) for claim, requests in found.items()}
