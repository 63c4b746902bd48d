"""The policies of overlays/claims on a real kube-apiserver: nobody makes up claims or cards."""

import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from fracgpu import names
from fracgpu.cards.card import Card, CardUuid
from fracgpu.device_claims.devices import pool_spec
from fracgpu.units import Mib
from kube.errors import Forbidden, KubeError
from kube.kinds import (
    DEVICE_CLASSES,
    MUTATING_WEBHOOKS,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    VALIDATING_WEBHOOKS,
    Kind,
)
from kube.objects import decode_object
from tests.support.helm import ROOT
from tests.support.markdown import blocks
from tests.support.policed import Harness, a_pod, annotated, is_refused, policed_harness, refusal
from tests.support.waiting import until
from tests.support.yaml_files import read_yaml

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

OURS = "fracgpu-0123456789"
TEMPLATES = Kind(
    "resource.k8s.io/v1", "resourceclaimtemplates", "ResourceClaimTemplate", namespaced=True
)
NAMESPACE = "default"
PROTECTION = "resource.kubernetes.io/delete-protection"


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    async with policed_harness(tmp_path, folder=ROOT / "overlays" / "claims") as harness:
        for kind in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS):
            await harness.admin.delete(kind, "fracgpu-webhook")

        async def all_in_force() -> bool:
            thief = a_pod("thief", resourceClaims=[a_reference()])
            probes = (
                harness.admin.create(
                    RESOURCE_CLAIMS, a_claim(OURS), namespace=NAMESPACE, dry_run=True
                ),
                harness.admin.create(PODS, thief, namespace=NAMESPACE, dry_run=True),
                harness.admin.create(RESOURCE_SLICES, a_slice("n1"), dry_run=True),
            )
            return all([await is_refused(probe) for probe in probes])

        await until(all_in_force, what="the policies of claims in force", limit_s=60)
        yield harness


def a_claim(
    name: str, *, device_class: str = names.DEVICE_CLASS, owner: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    exactly = {"deviceClassName": device_class}
    metadata = {"name": name, "ownerReferences": [owner] if owner else []}
    return {
        "metadata": metadata,
        "spec": {"devices": {"requests": [{"name": "c", "exactly": exactly}]}},
    }


def a_reference(name: str = OURS, *, entry: str = "x") -> dict[str, str]:
    return {"name": entry, "resourceClaimName": name}


def a_slice(node: str) -> dict[str, Any]:
    card = Card(uuid=CardUuid(f"GPU-{node}-0"), index=0, model="NVIDIA-A100", total_mib=Mib(40_960))
    return {"metadata": {"name": f"{node}-cards"}, "spec": pool_spec(node, [card], generation=1)}


def a_pod_with_its_claim(name: str, *, claim: str = OURS) -> dict[str, Any]:
    """Return a pod as the webhook leaves it."""
    grant = f'c: 20000 MiB "claim":"fracgpu-ffffffffff"\n{{"containers":{{}},"claim":"{claim}"}}'
    notes = {names.FRACTION: "0.5", names.GRANTED: grant}
    return a_pod(name, notes=notes, resourceClaims=[a_reference(entry=names.POD_CLAIM)])


async def test_only_the_scheduler_makes_the_claims_of_pods_and_makes_no_other(
    harness: Harness,
) -> None:
    admin, scheduler = harness.admin, await harness.as_account("fracgpu-scheduler")
    said = await refusal(admin.create(RESOURCE_CLAIMS, a_claim(OURS), namespace=NAMESPACE))
    assert "choose another name" in said
    placed = a_claim("mine", device_class=names.DEVICE_CLASS_PLACED)
    said = await refusal(admin.create(RESOURCE_CLAIMS, placed, namespace=NAMESPACE))
    assert "use the class fracgpu" in said
    template = {"metadata": {"name": "mine"}, "spec": {"spec": placed["spec"]}}
    assert "use the class fracgpu" in await refusal(
        admin.create(TEMPLATES, template, namespace=NAMESPACE)
    )
    ranked = [{"name": "one", "deviceClassName": names.DEVICE_CLASS_PLACED}]
    ranked_claim = a_claim("mine")
    ranked_claim["spec"]["devices"]["requests"] = [{"name": "c", "firstAvailable": ranked}]
    said = await refusal(admin.create(RESOURCE_CLAIMS, ranked_claim, namespace=NAMESPACE))
    assert "use the class fracgpu" in said
    await admin.create(RESOURCE_CLAIMS, a_claim("fracgpu-of-mine"), namespace=NAMESPACE)

    pod = await admin.create(PODS, a_pod_with_its_claim("one"), namespace=NAMESPACE)
    owner = {
        "apiVersion": "v1", "kind": "Pod", "name": "one", "uid": pod["metadata"]["uid"],
        "controller": True, "blockOwnerDeletion": False,
    }  # fmt: skip
    claim = a_claim(OURS, device_class=names.DEVICE_CLASS_PLACED, owner=owner)
    made = await scheduler.create(RESOURCE_CLAIMS, claim, namespace=NAMESPACE)

    for wrong in (
        a_claim(OURS), a_claim("other", owner=owner),
        a_claim("fracgpu-0123456780", device_class="gpu.example.com", owner=owner),
    ):  # fmt: skip
        said = await refusal(scheduler.create(RESOURCE_CLAIMS, wrong, namespace=NAMESPACE))
        assert "each owned by one pod" in said or "already exists" in said
    with pytest.raises(Forbidden):
        await scheduler.delete(RESOURCE_CLAIMS, "fracgpu-of-mine", namespace=NAMESPACE)
    with pytest.raises(Forbidden):
        await scheduler.patch(RESOURCE_CLAIMS, OURS, annotated("x", "y"), namespace=NAMESPACE)
    other = {**owner, "uid": "00000000-0000-0000-0000-000000000000"}
    stolen = {"metadata": {"ownerReferences": [other]}}
    said = await refusal(admin.patch(RESOURCE_CLAIMS, OURS, stolen, namespace=NAMESPACE))
    assert "which pod the card is for" in said
    await admin.patch(RESOURCE_CLAIMS, OURS, annotated("note", "of a user"), namespace=NAMESPACE)
    assert made["metadata"]["name"] == OURS
    await scheduler.delete(RESOURCE_CLAIMS, OURS, namespace=NAMESPACE)
    # Neither in RBAC: it places no pod, and gives no card.
    for verb, what in (
        ("create", "pods/binding"), ("patch", "pods/status"), ("update", "resourceclaims/status"),
        ("update", "resourceclaims"), ("create", "resourceslices"),
    ):  # fmt: skip
        answer = await harness.kubectl.ask(
            "auth", "can-i", verb, what,
            "--as=system:serviceaccount:fracgpu-system:fracgpu-scheduler", "-A",
        )  # fmt: skip
        assert answer.out.strip() == "no", (verb, what)


async def test_a_pod_names_no_claim_but_the_one_in_its_grant(harness: Harness) -> None:
    admin = harness.admin
    await admin.create(PODS, a_pod_with_its_claim("own"), namespace=NAMESPACE)
    for thief in (
        a_pod("thief", resourceClaims=[a_reference()]),
        a_pod("thief", notes={names.FRACTION: "0.5"}, resourceClaims=[a_reference()]),
        a_pod_with_its_claim("thief", claim="fracgpu-aaaaaaaaaa"),
        # What a user can bring into the words of a grant stands before its last line.
        {
            **(pod := a_pod_with_its_claim("thief")),
            "spec": {**pod["spec"], "resourceClaims": [a_reference("fracgpu-ffffffffff")]},
        },
    ):
        said = await refusal(admin.create(PODS, thief, namespace=NAMESPACE))
        assert "the FracGPU webhook writes each pod's own one" in said
    for allowed in ("fracgpu-training", "fracgpu-data-x7x2b", "mine"):
        pod = a_pod(f"of-{allowed}", resourceClaims=[a_reference(allowed)])
        await admin.create(PODS, pod, namespace=NAMESPACE, dry_run=True)


async def test_a_claim_by_which_a_pod_holds_a_card_stays_until_kubernetes_frees_it(
    harness: Harness,
) -> None:
    """The built-in role edit may change claims: a stripped one would free the card at once."""
    admin = harness.admin
    for name, driver in (("held", names.DRA_DRIVER), ("foreign", "gpu.example.com")):
        await admin.create(RESOURCE_CLAIMS, a_claim(name), namespace=NAMESPACE)
        await admin.patch(
            RESOURCE_CLAIMS, name, {"metadata": {"finalizers": [PROTECTION]}}, namespace=NAMESPACE
        )
        result = {"request": "c", "driver": driver, "pool": "n1", "device": "gpu-n1-0"}
        status = {
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", "name": "gone", "uid": "uid-of-gone"}],
        }
        await admin.patch(
            RESOURCE_CLAIMS, name, {"status": status}, namespace=NAMESPACE, subresource="status"
        )
    stripped = {"metadata": {"finalizers": None}}

    said = await refusal(admin.patch(RESOURCE_CLAIMS, "held", stripped, namespace=NAMESPACE))
    assert "A pod holds a card by this ResourceClaim" in said
    await admin.patch(RESOURCE_CLAIMS, "foreign", stripped, namespace=NAMESPACE)
    other = {"metadata": {"finalizers": [PROTECTION, "example.com/of-a-user"]}}
    await admin.patch(RESOURCE_CLAIMS, "held", other, namespace=NAMESPACE)
    other["metadata"]["finalizers"].pop()
    await admin.patch(RESOURCE_CLAIMS, "held", other, namespace=NAMESPACE)
    await admin.delete(RESOURCE_CLAIMS, "held", namespace=NAMESPACE)
    held = await admin.get_object(RESOURCE_CLAIMS, "held", namespace=NAMESPACE)
    assert held["metadata"]["deletionTimestamp"]

    await harness.api.start_controller_manager()

    async def freed() -> bool:
        claims = (await admin.list(RESOURCE_CLAIMS)).items
        return all(decode_object(raw)["metadata"]["name"] != "held" for raw in claims)

    await until(freed, what="the claim of a pod that is gone freed", limit_s=60)


@pytest.mark.parametrize("device_class", [names.DEVICE_CLASS, names.DEVICE_CLASS_PLACED])
async def test_no_pod_takes_a_whole_card_by_a_limit_named_after_a_class(
    harness: Harness, device_class: str
) -> None:
    limits = {"limits": {f"deviceclass.resource.kubernetes.io/{device_class}": "1"}}
    for kind in ("containers", "initContainers"):
        pod = a_pod("taker")
        pod["spec"][kind] = [{"name": "taker", "image": "example.com/x", "resources": limits}]
        said = await refusal(harness.admin.create(PODS, pod, namespace=NAMESPACE))
        assert "ask with the annotation fracgpu.io/fraction" in said
    pod = a_pod("other")
    other = {"limits": {"deviceclass.resource.kubernetes.io/fracgpu-of-mine": "1"}}
    pod["spec"]["containers"][0]["resources"] = other
    await harness.admin.create(PODS, pod, namespace=NAMESPACE, dry_run=True)


async def test_the_policy_on_devices_knows_a_pods_own_claim(harness: Harness) -> None:
    own = a_pod_with_its_claim("own")
    beside = a_pod_with_its_claim("beside")
    beside["spec"]["resourceClaims"].append(a_reference("a-whole-card", entry="whole"))

    warned = {}
    for pod in (own, beside):
        answer = await harness.kubectl.ask("create", "--dry-run=server", "-f-", stdin=pod)
        assert answer.ok, answer.error
        warned[pod["metadata"]["name"]] = "also has resourceClaims" in answer.error

    assert warned == {"own": False, "beside": True}


async def test_a_nodes_slices_come_only_from_the_agent_of_that_node(harness: Harness) -> None:
    agent = await harness.agent_of("n1")
    await agent.create(RESOURCE_SLICES, a_slice("n1"))
    assert "agent of their node" in await refusal(
        harness.admin.create(RESOURCE_SLICES, a_slice("n2"))
    )
    assert "for the node it runs on" in await refusal(agent.create(RESOURCE_SLICES, a_slice("n2")))
    of_others = a_slice("n1")
    of_others["metadata"]["name"], of_others["spec"]["pool"]["name"] = "of-others", "n2"
    assert "in the pool of that name" in await refusal(agent.create(RESOURCE_SLICES, of_others))
    foreign = a_slice("n1")
    foreign["metadata"]["name"], foreign["spec"]["driver"] = "foreign", "gpu.example.com"
    assert "driver gpu.fracgpu.io" in await refusal(agent.create(RESOURCE_SLICES, foreign))
    foreign["spec"]["nodeName"] = foreign["spec"]["pool"]["name"] = "n2"
    await harness.admin.create(RESOURCE_SLICES, foreign)
    assert "for the node it runs on" in await refusal(agent.delete(RESOURCE_SLICES, "foreign"))
    unbound = await harness.as_account("fracgpu-deviceplugin")
    assert "its token must say" in await refusal(unbound.delete(RESOURCE_SLICES, "n1-cards"))
    # As kubelet does when it starts.
    await harness.admin.delete(RESOURCE_SLICES, "n1-cards")


async def test_the_classes_are_there_and_the_api_server_finds_nothing_to_warn_of(
    harness: Harness,
) -> None:
    found = {
        body["metadata"]["name"]: body["spec"]
        for body in map(decode_object, (await harness.admin.list(DEVICE_CLASSES)).items)
    }
    assert names.DRA_DRIVER in json.dumps(found[names.DEVICE_CLASS])
    assert found[names.DEVICE_CLASS_PLACED] == {}
    await harness.api.start_controller_manager()
    for name in ("fracgpu-claims", "fracgpu-claim-references", "fracgpu-slices", "fracgpu-devices"):
        await harness.check_types(name)


async def test_the_agent_reads_claims_and_writes_none(harness: Harness) -> None:
    """It reads a user's own claim too, which is written as ```yaml a-claim-of-your-own says."""
    agent = await harness.agent_of("n1")
    (own,) = [it for it in blocks("docs/device-claims.md") if it.name == "a-claim-of-your-own"]
    await harness.admin.create(RESOURCE_CLAIMS, read_yaml(own.text), namespace=NAMESPACE)

    found = await agent.get_object(RESOURCE_CLAIMS, "mine", namespace=NAMESPACE)

    assert found["metadata"]["name"] == "mine"
    with pytest.raises(KubeError, match=r"cannot (patch|delete)"):
        await agent.delete(RESOURCE_CLAIMS, "mine", namespace=NAMESPACE)


async def test_no_claim_of_a_user_tolerates_what_closes_a_card(harness: Harness) -> None:
    admin = harness.admin
    any_taint, reserved = {"operator": "Exists"}, {"key": names.RESERVED_TAINT}
    for device_class, toleration, refused in (
        (names.DEVICE_CLASS, any_taint, True),
        (names.DEVICE_CLASS, any_taint | reserved, True),
        ("other", any_taint | {"key": names.CORDONED_TAINT}, True),
        ("other", {"key": names.KEPT_TAINT, "value": "x", "operator": "Equal"}, True),
        ("other", any_taint, False),
        (names.DEVICE_CLASS, any_taint | {"key": "example.com/burnt"}, False),
    ):
        wanted = {"deviceClassName": device_class, "tolerations": [toleration]}
        exactly, ranked = a_claim("mine"), a_claim("mine")
        exactly["spec"]["devices"]["requests"] = [{"name": "c", "exactly": wanted}]
        one = {"name": "one", **wanted}
        ranked["spec"]["devices"]["requests"] = [{"name": "c", "firstAvailable": [one]}]
        template = {"metadata": {"name": "mine"}, "spec": {"spec": exactly["spec"]}}
        for kind, body in (
            (RESOURCE_CLAIMS, exactly),
            (RESOURCE_CLAIMS, ranked),
            (TEMPLATES, template),
        ):
            creation = admin.create(kind, body, namespace=NAMESPACE, dry_run=True)
            if refused:
                assert "leave out tolerations" in await refusal(creation)
            else:
                await creation
