"""Admission webhooks: which are called, with what, and what their answers mean.

Source: k8s.io/apiserver pkg/admission/plugin/webhook/{mutating,validating,errors,request}.
Mutating webhooks are called once: reinvocationPolicy IfNeeded is not honoured.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import uuid
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Protocol

import structlog

from simulator.apiserver.admission import match_conditions
from simulator.apiserver.admission.matching import MatchedWebhook, webhooks_for
from simulator.apiserver.apimachinery import resources
from simulator.apiserver.apimachinery.errors import ApiError, forbidden, internal
from simulator.apiserver.apimachinery.patches import BadPatchError, PatchError, json_patch
from simulator.apiserver.apimachinery.request_info import Operation
from simulator.objects import Json, decode, encode, thaw

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from simulator.apiserver.apimachinery.request_info import Attributes
    from simulator.apiserver.apimachinery.storage import Store

log = structlog.get_logger()

_GROUP_VERSION: Final = "admission.k8s.io/v1"
_OPTIONS: Final = {
    Operation.CREATE: "CreateOptions",
    Operation.UPDATE: "UpdateOptions",
    Operation.DELETE: "DeleteOptions",
}


class CallError(Exception):
    """A webhook could not be reached, or its answer could not be understood."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One POST to a webhook; ``server_name`` is what its certificate must be for."""

    url: str
    body: bytes
    ca_pem: bytes
    timeout_s: float
    server_name: str | None = None


class Caller(Protocol):
    """Carries an AdmissionReview to a webhook over TLS."""

    async def post(self, call: Call) -> bytes:
        """Return the body of a 200 answer.

        Raises:
            CallError: no connection, an untrusted certificate, no answer in time, or
                another status.
        """
        ...


class WebhookAdmission:
    """Calls the webhooks that are configured in the store.

    Args:
        store: where the configurations are.
        caller: reaches webhooks.
        rng: for the uids of AdmissionReviews.
        resolve_service: (namespace, name, port) to the base URL of a Service; without it a
            webhook that names a Service cannot be reached.
    """

    def __init__(
        self,
        store: Store,
        caller: Caller,
        rng: random.Random,
        *,
        resolve_service: Callable[[str, str, int], str] | None = None,
    ) -> None:
        self._store = store
        self._caller = caller
        self._rng = rng
        self._resolve_service = resolve_service

    async def mutate(self, attributes: Attributes) -> Json:
        """Return the object as changed by the mutating webhooks, called one after the other.

        Raises:
            ApiError: one denied the request, or could not be called and fails closed.
        """
        value = attributes.value
        for hook in webhooks_for(self._store, resources.MUTATING_WEBHOOKS, attributes):
            response = await self._ask(hook, replace(attributes, value=value))
            if response is not None and response.get("patch"):
                value = _patched(hook, attributes, value or {}, response)
        return value if value is not None else {}

    async def validate(self, attributes: Attributes) -> None:
        """Call the validating webhooks concurrently.

        Raises:
            ApiError: of the first that denied, or could not be called and fails closed.
        """
        asked = webhooks_for(self._store, resources.VALIDATING_WEBHOOKS, attributes)
        refusals: dict[int, ApiError] = {}

        async def ask(index: int, hook: MatchedWebhook) -> None:
            try:
                await self._ask(hook, attributes)
            except ApiError as error:
                refusals[index] = error

        async with asyncio.TaskGroup() as group:
            for index, hook in enumerate(asked):
                group.create_task(ask(index, hook), name=f"webhook {hook.name}")
        if refusals:
            raise refusals[min(refusals)]

    async def _ask(self, hook: MatchedWebhook, attributes: Attributes) -> Json | None:
        """Return the webhook's response, or None if a match condition excludes this request."""
        review = _review(attributes, uid=str(uuid.UUID(int=self._rng.getrandbits(128), version=4)))
        if not _concerned(hook, attributes, review["request"]):
            return None
        try:
            answer = await self._caller.post(self._call(hook, review))
            response = _response(answer, uid=review["request"]["uid"])
        except CallError as error:
            if hook.fails_open:
                log.warning("webhook_failed_open", webhook=hook.name, error=str(error))
                return None
            raise internal(f'failed calling webhook "{hook.name}": {error}') from error
        attributes.context.warnings.extend(
            str(warning) for warning in response.get("warnings") or []
        )
        if response.get("allowed") is not True:
            raise _denial(hook, response)
        return response

    def _call(self, hook: MatchedWebhook, review: Json) -> Call:
        client = hook.spec["clientConfig"]
        timeout_s = hook.spec["timeoutSeconds"]
        url, server_name = client.get("url"), None
        service = client.get("service")
        if service is not None and self._resolve_service is not None:
            namespace, name = service["namespace"], service["name"]
            base = self._resolve_service(namespace, name, service["port"])
            url = base.rstrip("/") + "/" + (service.get("path") or "").lstrip("/")
            server_name = f"{name}.{namespace}.svc"
        return Call(
            url=f"{url}{'&' if '?' in str(url) else '?'}timeout={timeout_s}s",
            body=encode(review),
            ca_pem=base64.b64decode(client.get("caBundle") or ""),
            timeout_s=timeout_s,
            server_name=server_name,
        )


def _review(attributes: Attributes, *, uid: str) -> Json:
    target, context = attributes.target, attributes.context
    group, version, kind = attributes.kind
    kind_ref = {"group": group, "version": version, "kind": kind}
    resource_ref = {
        "group": target.resource.group,
        "version": target.resource.version,
        "resource": target.resource.plural,
    }
    request: Json = {
        "uid": uid,
        "kind": kind_ref,
        "resource": resource_ref,
        "requestKind": kind_ref,
        "requestResource": resource_ref,
        "operation": attributes.operation.value,
        "userInfo": {"username": context.user.name, "groups": list(context.user.groups)},
        "object": _shown(attributes, attributes.value),
        "oldObject": _shown(attributes, attributes.before),
        "dryRun": context.dry_run,
        "options": {
            "kind": _OPTIONS[attributes.operation],
            "apiVersion": "meta.k8s.io/v1",
            **context.options,
        },
    }
    optional = {"name": target.name, "namespace": target.namespace}
    request |= {key: value for key, value in optional.items() if value}
    if target.subresource:
        request |= {"subResource": target.subresource, "requestSubResource": target.subresource}
    return {"kind": "AdmissionReview", "apiVersion": _GROUP_VERSION, "request": request}


def _shown(attributes: Attributes, value: Json | None) -> Json | None:
    if value is None:
        return None
    group, version, kind = attributes.kind
    return {"kind": kind, "apiVersion": f"{group}/{version}" if group else version, **value}


def _concerned(hook: MatchedWebhook, attributes: Attributes, request: Json) -> bool:
    wanted = hook.spec.get("matchConditions") or []
    if not wanted:
        return True
    variables: dict[str, Any] = {
        "object": request["object"],
        "oldObject": request["oldObject"],
        "request": {k: v for k, v in request.items() if k not in {"object", "oldObject"}},
    }
    try:
        return match_conditions.all_hold(wanted, variables)
    except match_conditions.ConditionError as error:
        if hook.fails_open:
            log.warning("match_condition_failed_open", webhook=hook.name, error=str(error))
            return False
        target = attributes.target
        raise forbidden(target.resource, target.name, str(error)) from error


def _response(answer: bytes, *, uid: str) -> Json:
    try:
        review = decode(answer)
    except ValueError as error:
        raise CallError(f"couldn't read the answer: {error}") from error
    found = review if isinstance(review, dict) else {}
    if (found.get("kind"), found.get("apiVersion")) != ("AdmissionReview", _GROUP_VERSION):
        raise CallError(
            f"expected webhook response of {_GROUP_VERSION}, Kind=AdmissionReview, got "
            f"{found.get('apiVersion')}, Kind={found.get('kind')}"
        )
    response = found.get("response")
    if not isinstance(response, dict):
        raise CallError("received invalid webhook response: webhook response was absent")
    if response.get("uid") != uid:
        raise CallError(
            f'received invalid webhook response: expected response.uid="{uid}", got '
            f'"{response.get("uid")}"'
        )
    if response.get("patch") and response.get("patchType") != "JSONPatch":
        raise CallError(
            "received invalid webhook response: webhook returned response.patch but "
            f"response.patchType is {response.get('patchType')!r}; want JSONPatch"
        )
    return response


def _denial(hook: MatchedWebhook, response: Json) -> ApiError:
    status = response.get("status") or {}
    denied = f'admission webhook "{hook.name}" denied the request'
    why = status.get("message") or status.get("reason")
    code = status.get("code") or 0
    details = status.get("details")
    return ApiError(
        max(int(code), HTTPStatus.BAD_REQUEST),
        str(status.get("reason") or ""),
        f"{denied}: {why}" if why else f"{denied} without explanation",
        details=details if isinstance(details, dict) else None,
    )


def _patched(hook: MatchedWebhook, attributes: Attributes, value: Json, response: Json) -> Json:
    if attributes.operation is Operation.DELETE:
        return value
    try:
        operations = decode(base64.b64decode(response["patch"], validate=True))
        patched = json_patch(_shown(attributes, thaw(value)), operations)
    except (binascii.Error, ValueError, TypeError, BadPatchError, PatchError) as error:
        raise internal(
            f'webhook "{hook.name}" sent a patch that does not apply: {error}'
        ) from error
    if not isinstance(patched, dict):
        raise internal(f'webhook "{hook.name}" removed the object')
    changed: Json = patched
    return changed
