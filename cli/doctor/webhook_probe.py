"""Asks the webhook through the API server, by a dry run of a pod that it has to refuse."""

from typing import Any, Final

from fracgpu import names
from fracgpu.doctor.facts import AdmissionAnswer, Unread
from kube.client import KubeClient
from kube.errors import Forbidden, Invalid, KubeError
from kube.kinds import PODS

# More than a card has: whoever reads the request refuses it.
_IMPOSSIBLE: Final = "2"
_BY_US: Final = ".fracgpu.io"
_DENIED: Final = 'admission webhook "'
_NOT_CALLED: Final = "failed calling webhook"
_POLICY: Final = "ValidatingAdmissionPolicy 'fracgpu-"


async def ask_webhook(client: KubeClient, *, namespace: str) -> AdmissionAnswer | Unread:
    """Return what the API server says to a pod with an impossible request; nothing is stored.

    Raises:
        KubeError: no answer, or one that has nothing to do with webhooks.
    """
    body: dict[str, Any] = {
        "metadata": {
            "generateName": "fracgpu-doctor-",
            "annotations": {names.FRACTION: _IMPOSSIBLE},
        },
        "spec": {"containers": [{"name": "none", "image": "none"}]},
    }
    try:
        await client.create(PODS, body, namespace=namespace, dry_run=True)
    except KubeError as error:
        if _DENIED in error.message and _BY_US in error.message and "denied" in error.message:
            return AdmissionAnswer(refused_by_webhook=True, message="")
        if _NOT_CALLED in error.message and _BY_US in error.message:
            return AdmissionAnswer(refused_by_webhook=False, message=error.message)
        if _POLICY in error.message:
            message = f"only a policy refused the pod of the dry run: {error.message}"
            return AdmissionAnswer(refused_by_webhook=False, message=message)
        if isinstance(error, Forbidden | Invalid):
            return Unread(f"the dry run of a pod in namespace {namespace}: {error.message}")
        raise
    return AdmissionAnswer(refused_by_webhook=False, message="")
