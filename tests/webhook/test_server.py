import base64
import json
from collections.abc import AsyncIterator
from dataclasses import replace

import aiohttp
import pytest
import structlog

from tests.webhook.builders import RULES, a_container, a_pod, a_review
from tests.webhook.harness import Harness, a_webhook

UID = "9e8992f7-5761-4a27-a7b0-501b0d61c7f6"
MIB = 1024 * 1024


@pytest.fixture
async def server() -> AsyncIterator[Harness]:
    async with a_webhook() as server:
        yield server


async def test_a_good_request_is_answered_with_a_patch(server: Harness) -> None:
    answer = await server.post(a_review(a_pod(fraction="0.5")))

    assert answer.status == 200
    assert (answer.response["uid"], answer.response["allowed"]) == (UID, True)
    paths = [edit["path"] for edit in json.loads(base64.b64decode(answer.response["patch"]))]
    assert paths == [
        "/metadata/annotations/fracgpu.io~1granted",
        "/metadata/labels",
        "/spec/containers/0/resources",
        "/spec/affinity",
        "/spec/schedulerName",
    ]
    assert server.counted("granted", dialect="fracgpu") == 1


async def test_nonsense_is_refused_with_200_and_the_reason(server: Harness) -> None:
    answer = await server.post(a_review(a_pod(fraction="2")))

    assert answer.status == 200
    assert answer.response == {
        "uid": UID,
        "allowed": False,
        "status": {
            "code": 422,
            "reason": "Invalid",
            "message": "fracgpu.io/fraction is '2'; want a share of one card above 0 and at most "
            "1, e.g. '0.5' or '50%'; write '2%' if percent was meant, or fracgpu.io/cards for "
            "several cards",
        },
    }
    assert server.counted("refused", dialect="fracgpu") == 1


async def test_who_asks_for_nothing_passes_even_before_the_cluster_is_read(server: Harness) -> None:
    server.classes = None

    answer = await server.post(a_review(a_pod()))

    assert answer.response == {"uid": UID, "allowed": True}
    assert server.counted("untouched") == 1


async def test_a_request_before_the_cluster_is_read_is_put_off_with_503_inside(
    server: Harness,
) -> None:
    server.classes = None

    answer = await server.post(a_review(a_pod(fraction="0.5")))

    assert (answer.status, answer.response["status"]["code"]) == (200, 503)


async def test_an_update_is_judged_by_who_makes_it(server: Harness) -> None:
    old = a_pod(fraction="0.5")
    new = a_pod(fraction="0.5", wired="GPU-1")
    update = {"operation": "UPDATE", "oldObject": old}
    agent = {"username": "system:serviceaccount:fracgpu-system:fracgpu-deviceplugin"}

    by_anybody = await server.post(a_review(new, **update))
    by_the_agent = await server.post(a_review(new, **update, userInfo=agent))

    assert by_anybody.response["allowed"] is False
    assert by_the_agent.response == {"uid": UID, "allowed": True}


async def test_a_malformed_body_gets_400_and_the_server_lives(server: Harness) -> None:
    answer = await server.post(b"[" * MIB)

    assert answer.status == 400
    assert answer.text.startswith("the body cannot be read: ")
    assert server.counted("malformed") == 1
    assert (await server.post(a_review(a_pod()))).status == 200


async def test_a_body_of_exactly_the_limit_is_read(server: Harness) -> None:
    review = json.dumps(a_review(a_pod(fraction="0.5"))).encode()

    answer = await server.post(review + b" " * (3 * MIB - len(review)))

    assert answer.response["allowed"] is True


async def test_a_body_above_the_limit_gets_413_and_the_server_lives(server: Harness) -> None:
    review = json.dumps(a_review(a_pod(fraction="0.5"))).encode()

    answer = await server.post(review + b" " * (3 * MIB + 1 - len(review)))

    assert answer.status == 413
    assert server.counted("too_large") == 1
    assert (await server.post(a_review(a_pod()))).status == 200


async def test_a_body_of_unknown_length_gets_413_once_it_is_too_long(server: Harness) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(4):
            yield b" " * MIB

    try:
        answer = await server.post(endless())
    except aiohttp.ClientConnectionError:
        # The server may close the connection while we are still sending.
        pass
    else:
        assert answer.status == 413
    assert server.counted("too_large") == 1


async def test_only_post_is_understood(server: Harness) -> None:
    assert (await server.get("/mutate")).status == 405
    assert (await server.get("/validate")).status == 405
    assert (await server.post(b"{}", path="/other")).status == 404


A_DEPLOYMENT = {"group": "apps", "version": "v1", "kind": "Deployment"}


async def test_a_workload_is_judged_and_never_changed(server: Harness) -> None:
    good = {"spec": {"template": a_pod(fraction="0.5")}}
    bad = {"spec": {"template": a_pod(fraction="2")}}

    passed = await server.post(a_review(good, kind=A_DEPLOYMENT), path="/validate")
    refused = await server.post(a_review(bad, kind=A_DEPLOYMENT), path="/validate")

    assert passed.response == {"uid": UID, "allowed": True}
    assert refused.response["status"]["message"].startswith("in spec.template: fracgpu.io/fraction")
    assert server.counted("unchanged", dialect="fracgpu") == 1
    assert server.counted("refused", dialect="fracgpu") == 1


async def test_a_template_is_granted_where_its_namespace_says_so(server: Harness) -> None:
    body = {"spec": {"template": a_pod(fraction="0.5")}}
    said = []
    for labels, patched in (({}, False), ({"fracgpu.io/grant-templates": "true"}, True)):
        server.labels["ml"] = labels
        with structlog.testing.capture_logs() as logs:
            answer = await server.post(a_review(body, kind=A_DEPLOYMENT), path="/mutate-templates")
        assert answer.response["allowed"]
        assert ("patch" in answer.response) is patched
        said += [(line["event"], line.get("granted")) for line in logs]
    assert said == [("review_passed", None), ("template_granted", "train=40960")]
    assert server.counted("granted", dialect="fracgpu") == 1
    pod = await server.post(a_review(a_pod()), path="/mutate-templates")
    assert pod.status == 400


async def test_a_pod_that_cannot_be_read_is_refused_in_words_if_it_asks(server: Harness) -> None:
    """The API server hides the text of an error 400; it sends a pod without containers as null."""
    asks, other = a_pod(fraction="0.5"), a_pod()
    asks["spec"]["containers"] = other["spec"]["containers"] = None

    refused, unread = await server.post(a_review(asks)), await server.post(a_review(other))

    said = "request.object cannot be read: Expected `array`, got `null` - at `$.spec.containers`"
    assert refused.response["status"]["message"] == said
    assert (unread.status, unread.text) == (400, f"{said}\n")


async def test_each_route_takes_only_what_it_is_for(server: Harness) -> None:
    pod = await server.post(a_review(a_pod()), path="/validate")
    workload = await server.post(a_review({"spec": {}}, kind=A_DEPLOYMENT))

    assert (pod.status, workload.status) == (400, 400)
    assert pod.text.startswith("request.kind is core Pod; want a workload: Deployment, ")
    assert workload.text.startswith("request.kind is apps Deployment; want core Pod")


@pytest.mark.parametrize("size", [0, 400 * 1024])
async def test_nobody_writes_a_grant_where_requests_are_left_unread(
    server: Harness, size: int
) -> None:
    """The policies allow a grant on a new pod, because they cannot verify its author."""
    server.rules = replace(RULES, excluded_namespaces=frozenset({"ml"}))
    pod = a_pod(granted="train: 80000 MiB on 1 card", spec={"hostname": "h" * size})

    answer = await server.post(a_review(pod))

    assert answer.response["allowed"] is False
    wanted = "384 KiB" if size else "only the webhook writes it"
    assert wanted in answer.response["status"]["message"]


async def test_an_excluded_namespace_is_left_alone_with_a_warning(server: Harness) -> None:
    server.rules = replace(RULES, excluded_namespaces=frozenset({"ml"}))
    warning = (
        "namespace ml is excluded from FracGPU by its administrator, so requests in fracgpu.io/ "
        "keys are ignored"
    )

    pod = await server.post(a_review(a_pod(fraction="2")))
    body = {"spec": {"template": a_pod(fraction="2")}}
    workload = await server.post(a_review(body, kind=A_DEPLOYMENT), path="/validate")

    assert pod.response == {"uid": UID, "allowed": True, "warnings": [warning]}
    assert workload.response == pod.response


@pytest.mark.parametrize("young", [False, True])
async def test_a_namespaces_label_turns_a_dialect_on(server: Harness, *, young: bool) -> None:
    server.labels["ml"] = {"fracgpu.io/dialects": "gpushare"}
    server.young = {"ml"} if young else set()
    pod = a_pod(a_container(resources={"limits": {"aliyun.com/gpu-mem": "4"}}))

    await server.post(a_review(pod))

    assert server.counted("granted", dialect="gpushare") == 1


async def test_a_review_in_a_namespace_that_does_not_exist_leaves_no_line_of_a_grant(
    server: Harness,
) -> None:
    server.young = server.gone = {"ml"}

    with structlog.testing.capture_logs() as lines:
        answer = await server.post(a_review(a_pod(fraction="0.5")))

    assert answer.response["allowed"] is False
    assert answer.response["status"]["message"] == "namespace 'ml' does not exist"
    assert server.counted("unknown_namespace") == 1
    assert lines == []


async def test_without_the_labels_of_its_namespace_a_review_gets_no_answer(
    server: Harness,
) -> None:
    """So the failure policy of the entry decides: a dialect may be on in that namespace."""
    server.young = server.unread = {"ml"}
    foreign = a_pod(a_container(resources={"limits": {"aliyun.com/gpu-mem": "4"}}))

    for pod in (foreign, a_pod(fraction="0.5")):
        answer = await server.post(a_review(pod))
        assert (answer.status, answer.text) == (503, "namespace ml: no answer\n")

    assert server.counted("namespace_unread") == 2


async def test_every_review_leaves_one_line_with_its_uid(server: Harness) -> None:
    with structlog.testing.capture_logs() as lines:
        await server.post(a_review(a_pod(fraction="0.5")))
        await server.post(a_review(a_pod(fraction="2")))
        await server.post(a_review(a_pod(), dryRun=True))

    assert [(line["event"], line["uid"], line["dry_run"]) for line in lines] == [
        ("pod_granted", UID, False),
        ("pod_refused", UID, False),
        ("review_passed", UID, True),
    ]
    assert lines[0]["granted"].startswith("train: 40960 MiB on 1 card")
    assert lines[1]["reason"].startswith("fracgpu.io/fraction is '2'")
    assert {"namespace": "ml", "name": "job-1", "user": "alice"}.items() <= lines[0].items()


async def test_a_line_has_no_long_text_of_its_review(server: Harness) -> None:
    with structlog.testing.capture_logs() as lines:
        await server.post(a_review(a_pod(), uid="u" * 5000, name="n" * 5000))

    assert max(len(str(text)) for text in lines[0].values()) <= 253


async def test_probes_and_metrics_are_answered_beside_the_reviews(server: Harness) -> None:
    server.checks["inventory"] = "the API server has not listed nodes yet"

    not_ready = await server.get("/readyz")
    server.checks["inventory"] = None
    ready = await server.get("/readyz")

    assert (not_ready.status, ready.status) == (503, 200)
    assert "inventory: the API server has not listed nodes yet" in not_ready.text
    assert (await server.get("/livez")).status == 200
    assert "fracgpu_webhook_decisions_total" in (await server.get("/metrics")).text


async def test_without_a_certificate_no_connection_is_made() -> None:
    async with a_webhook(certificate=False) as server:
        with pytest.raises(aiohttp.ClientConnectionError):
            await server.get("/livez")
