"""Which cards an image may see by itself: NVIDIA's runtime believes one environment variable."""

from collections.abc import Collection, Iterator, Sequence
from typing import Final

from fracgpu import names
from fracgpu.errors import RequestError
from webhook.admission.patch import Edit
from webhook.admission.pod import Container, Pod

_KEY: Final = names.ENV_VISIBLE_DEVICES
VOID: Final = "void"

# Neither gives a card away: "void" means as if the variable were not set, "none" drivers alone.
# Source: NVIDIA container toolkit, documentation of NVIDIA_VISIBLE_DEVICES.
_HARMLESS: Final = (VOID, "none")


def places(pod: Pod) -> Iterator[tuple[str, Sequence[Container]]]:
    """Give each list of containers with its JSON pointer."""
    yield "/spec/initContainers", pod.spec.init_containers or ()
    yield "/spec/containers", pod.spec.containers


def refuse_chosen_cards(pod: Pod) -> None:
    """Refuse a pod with a request that also chooses cards past the scheduler.

    Raises:
        RequestError: a container sets the variable to anything that shows it a card.
    """
    for _, containers in places(pod):
        for container in containers:
            for variable in container.env or ():
                if variable.name == _KEY and variable.value not in _HARMLESS:
                    raise RequestError(
                        field=f"env {_KEY} of container '{container.name}'",
                        found=variable.value or "no plain value",
                        wanted="no such variable: FracGPU chooses the cards, and shows them",
                        hint="leave it out",
                    )


def void_edits(pod: Pod, granted: Collection[str]) -> list[Edit]:
    """Keep every container that is not *granted* anything from seeing all cards of the node.

    CUDA images set the variable to "all", and a runtime that trusts it would obey.
    """
    edits = []
    for path, containers in places(pod):
        for index, container in enumerate(containers):
            if container.name in granted or _is_set(container):
                continue
            variable = {"name": _KEY, "value": VOID}
            if container.env is None:
                edits.append(Edit(path=f"{path}/{index}/env", value=[variable]))
            else:
                edits.append(Edit(path=f"{path}/{index}/env/-", value=variable))
    return edits


def _is_set(container: Container) -> bool:
    return any(it.name == _KEY for it in container.env or ())
