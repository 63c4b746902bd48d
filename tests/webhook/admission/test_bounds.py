"""No review takes long, whatever its author writes, and no answer is long."""

import json
import re
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.fixtures.adversarial_reviews import adversarial_reviews
from benchmarks.fixtures.live_webhook import odd_nodes
from benchmarks.fixtures.odd_reviews import FOREIGN
from fracgpu.cards.card import NodeCards
from fracgpu.cards.card_class import card_classes
from fracgpu.errors import MOST_MESSAGE_BYTES
from tests.support.work import counted_lines
from tests.webhook.builders import (
    CLASSES,
    RULES,
    Json,
    a_container,
    a_pod,
    a_review,
    denied,
    judged,
    parsed,
)
from webhook.admission.bounds import MAX_OBJECT_BYTES, MAX_TEMPLATES, check_bounds, check_size
from webhook.admission.context import DecisionContext
from webhook.admission.mutation import admit_create
from webhook.admission.review import (
    MalformedReviewError,
    read_pods,
    read_review,
    specs,
    write_allowed,
    write_refused,
)
from webhook.admission.update import admit_update
from webhook.admission.verdict import OURS, AdmissionResult, Allowed, Denied
from webhook.admission.workload import admit_workload, grant_templates
from webhook.admission_config import AdmissionConfig, WorkloadKind

ALL = {"fracgpu.io/dialects": "all", "fracgpu.io/grant-templates": "true"}
# The worst case: as many classes as cards.
ODD_CLASSES = (
    *CLASSES,
    *card_classes(
        (NodeCards(node=f"n{n}", cards=tuple(cards)) for n, cards in enumerate(odd_nodes(320))),
        free_mib={},
    ),
)
HOSTILE = "Ж"  # occurs in none of our texts


def answered(path: str, body: bytes) -> tuple[AdmissionResult | None, bytes]:
    """Return the decision on a body, and the answer, as the server without its transport."""
    review = read_review(body)
    if path != "/mutate":
        judge = admit_workload if path == "/validate" else grant_templates
        outcome = judge(
            review, DecisionContext(classes=ODD_CLASSES, config=RULES, namespace_labels=ALL)
        )
    else:
        beyond = check_size(review.object, review.old, what="the pod")
        if beyond is not None:
            outcome = beyond
        else:
            pod, old = read_pods(review)
            outcome = (
                admit_create(
                    pod, DecisionContext(classes=ODD_CLASSES, config=RULES, namespace_labels=ALL)
                )
                if old is None
                else admit_update(old, pod, user="alice", config=RULES)
            )
    if isinstance(outcome, Denied):
        answer = write_refused("u", message=outcome.message, code=422, reason="Invalid")
    else:
        answer = write_allowed("u", warnings=outcome.warnings)
    return outcome, answer


def test_for_every_review_work_is_bounded_answers_are_short_and_warnings_fit_the_headers() -> None:
    """Work is counted in lines of Python; `make fuzz` measures the time, of at most 50 ms."""
    work = {}
    reviews = [
        (what, route, body)
        for what, path, body in adversarial_reviews(240, seed=3)
        for route in ([path] if path == "/mutate" else [path, "/mutate-templates"])
    ]
    for what, path, body in reviews:
        with counted_lines() as lines:
            answer = answer_to(path, body)
        work[lines.count] = what

        response = json.loads(answer)["response"]
        if not response["allowed"]:
            assert len(response["status"]["message"].encode()) <= MOST_MESSAGE_BYTES
        warnings = response.get("warnings", [])
        assert all(len(warning.encode()) <= MOST_MESSAGE_BYTES for warning in warnings)
        assert sum(map(len, warnings)) <= 4096

    most = max(work)
    assert most < 300_000, work[most]


def answer_to(path: str, body: bytes) -> bytes:
    try:
        return answered(path, body)[1]
    except MalformedReviewError as error:
        return write_refused("u", message=str(error), code=400, reason="BadRequest")


def test_globs_over_a_large_fleet_and_many_containers_are_little_work() -> None:
    """32 globs, 320 card models of 63 characters each, 128 containers."""
    containers = [a_container(f"{n:0>63}") for n in range(128)]
    globs = [f"*[!q]*[!r]*[!s]*{n:04}x" for n in range(31)]
    pod = a_pod(
        fraction=",".join(
            f"{container['name']}=0.1{n:03}" for n, container in enumerate(containers)
        ),
        model=",".join([*globs, "*"]),
    )
    pod["spec"]["containers"] = containers
    body = raw(a_review(pod))

    with counted_lines() as lines:
        answer = answer_to("/mutate", body)

    said = json.loads(answer)["response"]["status"]["message"]
    assert "want at most what one node has" in said
    assert lines.count < 150_000, "a card model is compared with all globs at once"


def flood(size: int) -> st.SearchStrategy[str]:
    return st.integers(1, size).map(lambda n: HOSTILE * n)


KEYS = st.sampled_from(
    [
        *(f"fracgpu.io/{key}" for key in ("fraction", "memory", "cores", "cards", "model")),
        *(f"fracgpu.io/{key}" for key in ("placement", "rebalance", "granted", "wired")),
        *FOREIGN,
    ]
)
VALUES = st.one_of(
    flood(30_000),
    flood(63).map(lambda text: f"{text}=0.5"),
    flood(63).map(lambda text: f"train=0.5, {text}=x"),
    flood(96).map(lambda text: f"*{text}*"),
    st.sampled_from(["0.5", "8Gi", "100", "2", "train=0.5"]),
)


@given(
    annotations=st.dictionaries(KEYS | flood(300).map(lambda text: f"fracgpu.io/{text}"), VALUES),
    limits=st.dictionaries(
        st.sampled_from([*FOREIGN, "fracgpu.io/gpu-mem", "fracgpu.io/gpu-slot"])
        | flood(300).map(lambda text: f"fracgpu.io/{text}"),
        VALUES,
        max_size=3,
    ),
    names=st.lists(flood(70), max_size=4, unique=True),
    env=flood(500) | st.none(),
)
def test_an_error_repeats_at_most_200_characters_of_each_key_and_value(
    annotations: dict[str, str], limits: dict[str, str], names: list[str], env: str | None
) -> None:
    first = a_container(names[0] if names else "train", resources={"limits": limits})
    if env is not None:
        first["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": env}]
    pod: Json = a_pod(first, *(a_container(name) for name in names[1:]))
    pod["metadata"]["annotations"] = annotations

    outcome = judged(pod, labels=ALL)

    if isinstance(outcome, Denied):
        assert all(len(quoted) <= 200 for quoted in re.findall(f"{HOSTILE}+", outcome.message))
        assert len(outcome.message.encode()) <= MOST_MESSAGE_BYTES


def raw(value: Json) -> bytes:
    return json.dumps(value).encode()


def test_a_pod_too_large_to_be_read_is_refused_if_it_asks_and_left_alone_with_a_word_if_not() -> (
    None
):
    large = a_pod(spec={"nodeSelector": {"a": "x" * MAX_OBJECT_BYTES}})
    asks = a_pod(spec={"nodeSelector": {"a": "x" * MAX_OBJECT_BYTES}}, fraction="0.5")

    def judged_size(pod: Json, old: Json | None = None) -> AdmissionResult | None:
        operation = "CREATE" if old is None else "UPDATE"
        review = read_review(raw(a_review(pod, operation=operation, oldObject=old)))
        return check_size(review.object, review.old, what="the pod")

    said = "the pod is 384 KiB of JSON; want at most 384 KiB where a share of a card is asked for"
    assert judged_size(asks) == Denied(message=said)
    unread = judged_size(large)
    assert isinstance(unread, Allowed)
    assert len(unread.warnings) == 1
    assert judged_size(a_pod(fraction="0.5")) is None
    assert judged_size(asks, old=asks) == Allowed(), "what is stored stays free to end"


@pytest.mark.parametrize(
    ("pod", "said"),
    [
        (a_pod(a_container("x" * 64), fraction="0.5"), "at most 63 characters"),
        (a_pod(fraction="0.5", also={"y" * 320: ""}), "want at most 317 characters"),
        (
            a_pod(
                *(
                    a_container(f"c{n}", resources={"limits": {f"x/{m}": "1" for m in range(99)}})
                    for n in range(11)
                ),
                fraction="c0=0.5",
            ),
            "all containers more than 1000",
        ),
        (a_pod(fraction="0.5", also={f"k{n}": "" for n in range(1000)}), "1001 annotations"),
    ],
)
def test_more_than_anybody_needs_is_refused_by_its_name(pod: Json, said: str) -> None:
    assert said in denied(check_bounds(parsed(pod))).message


def judged_many(spec: Json, metadata: Json | None = None) -> tuple[AdmissionResult, int]:
    """Return the decision on an object with templates at ``spec.*.template``, and its work."""
    kind = WorkloadKind(group="x.example", kind="Many", templates=("spec.*.template",))
    body = {"metadata": metadata or {}, "spec": spec}
    review = read_review(raw(a_review(body, kind={"group": "x.example", "kind": "Many"})))
    rules = AdmissionConfig(workloads=(kind,))
    with counted_lines() as lines:
        outcome = admit_workload(review, DecisionContext(classes=CLASSES, config=rules))
    return outcome, lines.count


@pytest.mark.parametrize(
    ("templates", "containers", "refused"),
    [(MAX_TEMPLATES, 4, False), (MAX_TEMPLATES + 1, 1, True), (3, 86, True)],
)
def test_a_workload_with_templates_without_end_is_refused(
    templates: int, containers: int, *, refused: bool
) -> None:
    template = a_pod(*(a_container(f"c{n}") for n in range(containers)), fraction="c0=0.5")

    outcome, _ = judged_many({f"t{n}": {"template": template} for n in range(templates)})

    said = "the Many has more than 64 pod templates, or 256 containers in them; want fewer"
    assert outcome == (Denied(message=said) if refused else Allowed(dialect=OURS))


def test_a_template_that_cannot_be_read_counts_as_one() -> None:
    template = a_pod(a_container("c"), fraction="0.5")
    spec = {f"t{n}": {"template": template} for n in range(MAX_TEMPLATES + 2)}
    spec[f"t{MAX_TEMPLATES}"] = {"template": {"spec": None, "metadata": 5}}

    outcome, _ = judged_many(spec)

    assert "more than 64 pod templates" in denied(outcome).message


@pytest.mark.parametrize(
    ("spec", "metadata"),
    [
        ({f"t{n}": {"template": n} for n in range(10_000)}, {}),
        ({"t": {"template": {}}}, {"labels": {f"fracgpu.io/{n}": "" for n in range(15_000)}}),
    ],
    ids=["what has no template", "what has no effect"],
)
def test_a_workload_that_is_nothing_but_long_is_little_work(spec: Json, metadata: Json) -> None:
    outcome, lines = judged_many(spec, metadata)

    assert isinstance(outcome, Allowed)
    assert lines < 30_000


def test_fields_that_nobody_manages_are_little_work() -> None:
    """Anybody may write them into a template; 100,000 took 19 MB and a sixth of a second."""
    pod = a_pod(a_container("a"), a_container("b"), fraction="0.5")
    pod["metadata"]["managedFields"] = [{}] * 100_000
    read = parsed(pod)

    tracemalloc.start()
    try:
        assert len(specs(read)) == 2
        assert tracemalloc.get_traced_memory()[1] < 8_000_000
    finally:
        tracemalloc.stop()
