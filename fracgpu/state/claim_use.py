"""Which containers of a pod have which requests of its claims, as kubelet reads it."""

from collections.abc import Mapping
from dataclasses import dataclass

from fracgpu.k8s.pod import Pod
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


def claim_uses(pod: Pod) -> Mapping[str, ClaimUse]:
    """Return the claims of a pod by their names, those made from a template too."""
    spec = pod.spec
    names = {
        each.name: each.resource_claim_name
        for each in (*(pod.status.resource_claim_statuses or ()), *(spec.resource_claims or ()))
        if each.resource_claim_name
    }
    found: dict[str, dict[str, list[str]]] = {claim: {} for claim in names.values()}
    for container in (*(spec.init_containers or ()), *(spec.containers or ())):
        for use in (container.resources and container.resources.claims) or ():
            requests = found.get(names.get(use.name, ""), {}).setdefault(container.name, [])
            requests += [use.request] if use.request else []
    return {
        claim: ClaimUse(requests={name: tuple(requests) for name, requests in uses.items()})
        for claim, uses in found.items()
    }
