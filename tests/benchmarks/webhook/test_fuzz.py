import base64
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.fixtures.live_webhook import simulated_webhook
from benchmarks.fixtures.odd_reviews import odd_reviews
from benchmarks.fixtures.reviews import a_review
from benchmarks.webhook.fuzz import MODELS, _fault_of, fuzz, fuzz_costs

BODY = json.dumps(a_review()).encode()
UID = a_review()["request"]["uid"]


def an_answer(**response: Any) -> bytes:
    full = {"uid": UID, "allowed": True, **response}
    return json.dumps(
        {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": full}
    ).encode()


@pytest.mark.parametrize(
    ("status", "answer", "fault"),
    [
        (200, an_answer(), ""),
        (400, b"the reason", ""),
        (400, b"", "a 4xx without a reason"),
        (500, b"oh", "neither a review nor a 4xx"),
        (200, b"[]", "no review"),
        (200, an_answer(uid="x"), "uid 'x' instead of"),
        (200, an_answer(allowed=False), "no review (KeyError('status'))"),
        (200, an_answer(allowed=False, status={"message": ""}), "a refusal without a reason"),
        (200, an_answer(patch="e30=", patchType="MergePatch"), "an unknown kind of patch"),
        (
            200,
            an_answer(patch=base64.b64encode(b"{}").decode(), patchType="JSONPatch"),
            "not a JSON patch",
        ),
    ],
)
def test_a_wrong_answer_is_told_from_a_right_one(status: int, answer: bytes, fault: str) -> None:
    found = _fault_of(status, answer, BODY)

    assert found.startswith(fault)
    assert bool(found) == bool(fault)


def test_the_same_seed_yields_the_same_reviews_with_every_kind_of_change() -> None:
    once, again = list(odd_reviews(500, seed=1)), list(odd_reviews(50, seed=1))

    assert once[:50] == again
    assert {path for path, _ in once} == {"/mutate", "/validate"}
    assert max(len(body) for _, body in once) > 2_000_000
    assert any(b"[[[[[[[[" in body for _, body in once)
    assert any(b"NaN" in body for _, body in once)
    assert any(body.count(b'"metadata":') > 2 for _, body in once)


@pytest.mark.slow
@pytest.mark.timeout(600)  # of CPU work, which a busy machine slows down
async def test_a_real_webhook_answers_odd_reviews_rightly_and_stays_as_it_is(
    tmp_path: Path,
) -> None:
    """Three hundred times as many are `make fuzz`."""
    async with simulated_webhook(tmp_path, models=MODELS) as live:
        await fuzz(live, count=200, seed=1)  # caches and pools fill

        tally = await fuzz(live, count=300, seed=2)

    assert tally.faults == []
    assert sum(tally.statuses.values()) == 300
    # The server may close the connection on a body above the limit before it is sent in full.
    said = set(tally.statuses) - {"hung up"}
    assert said == {"4xx", "passed", "patched", "refused"}
    assert tally.rss_mib[-1] < tally.rss_mib[0] + 20, "memory is flat"


@pytest.mark.slow
@pytest.mark.timeout(600)  # of CPU work, which a busy machine slows down
async def test_a_real_webhook_answers_dear_reviews_rightly_and_their_cost_is_measured(
    tmp_path: Path,
) -> None:
    """That none costs more than its limit depends on the machine, and is asked by `make fuzz`."""
    async with simulated_webhook(tmp_path, models=MODELS) as live:
        tally = await fuzz_costs(live, count=96, seed=2)

    assert tally.faults == []
    assert sum(tally.statuses.values()) >= 96
    assert tally.most_cpu_s > 0
