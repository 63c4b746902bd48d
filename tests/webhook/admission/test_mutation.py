import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from fracgpu import names
from fracgpu.cards.card_class import CardClass
from fracgpu.k8s.node_affinity import read_node_rules
from fracgpu.request.grant import ClassRule
from fracgpu.request.grant_note import Seal
from fracgpu.request.language import parse_request
from fracgpu.state.pod_info import decode_pod_info
from fracgpu.units import Mib
from tests.webhook.builders import (
    A30S,
    AGENT,
    CLASSES,
    H100S,
    RULES,
    Json,
    a_container,
    a_pod,
    as_sent,
    denied,
    judged,
    judged_change,
    parsed,
    patched,
    stored,
    worded,
)
from webhook.admission.context import DecisionContext
from webhook.admission.mutation import NOT_READ_YET, admit_create
from webhook.admission.review import specs
from webhook.admission.verdict import OURS, Allowed, Denied, Patched
from webhook.admission_config import AdmissionConfig

SHARED = {"key": "fracgpu.io/share", "operator": "In", "values": ["true"]}


def has(key: str) -> Json:
    return {"key": f"fracgpu.io/{key}", "operator": "Exists"}


def more(key: str, number: int) -> Json:
    return {"key": f"fracgpu.io/{key}", "operator": "Gt", "values": [str(number)]}


def affinity(*terms: Sequence[Json]) -> Json:
    return {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": list(term)} for term in terms]
            }
        }
    }


VOID = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
HALF_H100 = "train: 40960 MiB on 1 card (0.5 of a card that shares 81920 MiB)"


class Row(NamedTuple):
    """A pod, and what admission adds to it and to each container that asks (MiB, and cards)."""

    pod: Json
    granted: str
    requires: Sequence[Json]
    amounts: Mapping[str, tuple[str, str]]

    def stored(self) -> Json:
        pod = copy.deepcopy(self.pod)
        pod["metadata"]["labels"] = {"fracgpu.io/granted": "true"}
        pod["metadata"].setdefault("annotations", {})["fracgpu.io/granted"] = self.granted
        pod["spec"]["schedulerName"] = "fracgpu-scheduler"
        pod["spec"]["affinity"] = affinity([SHARED, *self.requires])
        for container in (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]):
            if container["name"] not in self.amounts:
                container.setdefault("env", []).append(VOID)
                continue
            mib, slots = self.amounts[container["name"]]
            resources = container.setdefault("resources", {})
            for field in ("limits", "requests"):
                added = {"fracgpu.io/gpu-mem": mib, "fracgpu.io/gpu-slot": slots}
                resources[field] = resources.get(field, {}) | added
        return pod


def row(pod: Json, *requires: Json, granted: str, **amounts: str | tuple[str, str]) -> Row:
    """Return a row; an amount without a number of cards is of one card."""
    pairs = {name: (it, "1") if isinstance(it, str) else it for name, it in amounts.items()}
    return Row(pod, granted, requires, pairs)


def on_8_gib(pod: Json, *requires: Json) -> Row:
    granted = "train: 8192 MiB on 1 card"
    return row(pod, *requires, more("card-memory", 8191), granted=granted, train="8192")


def isolated(by: str) -> Json:
    return {"key": f"fracgpu.io/isolation-{by}", "operator": "In", "values": ["true"]}


GRANTED = {
    "a fraction is a share of the most free class": row(
        a_pod(fraction="0.5"), has("card-class-81920"), granted=HALF_H100, train="40960"
    ),
    "a model narrows the classes, and 12000 MiB are written as the API server writes them": row(
        a_pod(fraction="50%", model="*a30*"),
        has("card-class-24000"),
        granted="train: 12000 MiB on 1 card (0.5 of a card that shares 24000 MiB)",
        train="12k",
    ),
    "memory needs a card that is large enough": row(
        a_pod(memory="8Gi", cores="30"),
        more("card-memory", 8191),
        granted="train: 8192 MiB on 1 card, 30% of the compute",
        train="8192",
    ),
    "a pod that wants to be limited needs a node that limits": on_8_gib(
        a_pod(memory="8Gi", isolation="kernel"), isolated("kernel")
    ),
    "with a word of what else will do any node may be chosen": on_8_gib(
        a_pod(memory="8Gi", isolation="mps, none")
    ),
    "several cards carry the total in the limit and need a node with as many of the class": row(
        a_pod(fraction="1", cards="3"),
        more("card-class-81920", 2),
        granted="train: 81920 MiB on each of 3 cards (1 of a card that shares 81920 MiB)",
        train=("245760", "3"),
    ),
    "a plain limit is accepted as it stands": row(
        a_pod(a_container(resources={"limits": {"cpu": "1", "fracgpu.io/gpu-mem": "4096"}})),
        more("card-memory", 4095),
        granted="train: 4096 MiB on 1 card",
        train="4096",
    ),
    "each named container gets its own, init containers and sidecars among them": row(
        a_pod(
            a_container("train", resources={"limits": {"cpu": "2"}, "requests": {"cpu": "1"}}),
            a_container("logs"),
            init=[
                a_container("warm"),
                a_container("side", restartPolicy="Always"),
                a_container("fetch"),
            ],
            fraction="warm=0.25, train=0.5",
            memory="side=1Gi",
        ),
        has("card-class-81920"),
        more("card-memory", 1023),
        granted="warm: 20480 MiB on 1 card (0.25 of a card that shares 81920 MiB); "
        f"side: 1024 MiB on 1 card; {HALF_H100}",
        train="40960",
        warm="20480",
        side="1024",
    ),
    "the most cards of one container and the largest memory decide what a node must have": row(
        a_pod(
            *(a_container(name) for name in "abcd"),
            fraction="a=0.5, b=0.5",
            memory="c=1Mi, d=8Gi",
            cards="b=4",
        ),
        more("card-class-81920", 3),
        more("card-memory", 8191),
        granted=f"{HALF_H100.replace('train', 'a')}; b: 40960 MiB on each of 4 cards (0.5 of a "
        "card that shares 81920 MiB); c: 1 MiB on 1 card; d: 8192 MiB on 1 card",
        a="40960",
        b=("163840", "4"),
        c="1",
        d="8192",
    ),
    "how the card is chosen and how the pod may move is for others to read": row(
        a_pod(
            memory="1Gi", placement="spread", topology="any", isolation="none", rebalance="never"
        ),
        more("card-memory", 1023),
        granted="train: 1024 MiB on 1 card",
        train="1024",
    ),
    "an init container alone may ask, and the others see no card": row(
        a_pod(
            a_container("app", env=[{"name": "A", "value": "b"}]),
            init=[a_container("convert")],
            fraction="convert=0.5",
        ),
        has("card-class-81920"),
        granted="convert: 40960 MiB on 1 card (0.5 of a card that shares 81920 MiB)",
        convert="40960",
    ),
}


@pytest.mark.parametrize("granted", GRANTED.values(), ids=GRANTED.keys())
def test_a_pod_that_can_be_read_is_stored_like_this(granted: Row) -> None:
    once = stored(granted.pod, judged(granted.pod))

    assert worded(once) == granted.stored()
    assert judged(once) == Allowed(dialect=OURS), "admitting it again leaves it untouched"


def test_a_pod_that_gets_amds_cards_says_so_and_is_left_alone_by_the_next_review() -> None:
    amd = replace(H100S, models=frozenset({"AMD-Instinct-MI300X"}))
    pod = a_pod(fraction="0.5", model="*MI300*")
    once = stored(pod, judged(pod, (A30S, amd)))

    assert once["metadata"]["annotations"]["fracgpu.io/vendor"] == "amd"
    assert judged(once, (A30S, amd)) == Allowed(dialect=OURS)


def test_a_pod_of_nvidias_cards_stays_so_in_the_next_review_though_amds_are_the_freest() -> None:
    amd = replace(H100S, models=frozenset({"AMD-Instinct-MI300X"}))
    pod = a_pod(memory="8Gi")
    once = stored(pod, judged(pod, (amd, A30S)))

    assert "fracgpu.io/vendor" not in once["metadata"]["annotations"]
    assert judged(once, (amd, A30S)) == Allowed(dialect=OURS)


def test_init_containers_follow_each_other_and_sidecars_run_beside_all() -> None:
    asks = {"fraction": ", ".join(f"{name}=1" for name in "abcde")}
    inits = [a_container(name) for name in "abcde"]
    sidecars = [a_container(name, restartPolicy="Always") for name in "abcde"]

    refused = judged(a_pod(init=sidecars, also=asks))

    assert isinstance(judged(a_pod(init=inits, also=asks)), Patched)
    assert isinstance(refused, Denied)
    assert "want at most what one node has, 4 cards" in refused.message


def test_a_pod_that_asks_for_nothing_is_left_alone() -> None:
    pod = a_pod(a_container(resources={"limits": {"cpu": "1"}}))
    pod["metadata"]["annotations"] = {
        "prometheus.io/scrape": "true",
        "simulator.fracgpu.io/busy": "1",
    }

    assert judged(pod) == Allowed()
    assert judged(pod, None) == Allowed()


def test_null_where_a_map_could_stand_is_as_good_as_nothing() -> None:
    pod = a_pod(
        a_container(resources={"limits": {"fracgpu.io/gpu-mem": 1}, "requests": None}),
        spec={"affinity": {"nodeAffinity": None}, "initContainers": None},
    )
    pod["metadata"]["annotations"] = None

    result = stored(pod, judged(pod))

    assert worded(result)["metadata"]["annotations"] == {
        "fracgpu.io/granted": "train: 1 MiB on 1 card"
    }
    assert result["spec"]["containers"][0]["resources"]["requests"] == {
        "fracgpu.io/gpu-mem": "1",
        "fracgpu.io/gpu-slot": "1",
    }
    assert result["spec"]["affinity"] == affinity([SHARED, has("card-memory")])


def test_a_pod_without_any_metadata_gets_some() -> None:
    pod = a_pod(a_container(resources={"limits": {"fracgpu.io/gpu-mem": "512"}}))
    del pod["metadata"]

    assert worded(stored(pod, judged(pod)))["metadata"] == {
        "annotations": {"fracgpu.io/granted": "train: 512 MiB on 1 card"},
        "labels": {"fracgpu.io/granted": "true"},
    }


def test_a_pods_own_labels_are_kept_beside_the_one_of_its_grant() -> None:
    pod = a_pod(fraction="0.5")
    pod["metadata"]["labels"] = {"app": "train"}

    once = stored(pod, judged(pod))

    assert once["metadata"]["labels"] == {"app": "train", "fracgpu.io/granted": "true"}
    assert judged(once) == Allowed(dialect=OURS)


def required(terms: list[Json]) -> Json:
    inner = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {"affinity": {"nodeAffinity": inner, "podAffinity": {"kept": True}}}


def test_each_alternative_of_an_existing_affinity_gets_what_the_grant_requires() -> None:
    zone = {"key": "zone", "operator": "In", "values": ["a", "b"]}
    name = {"key": "metadata.name", "operator": "In", "values": ["gpu-7"]}
    pod = a_pod(
        spec=required([{"matchExpressions": [zone]}, {"matchFields": [name]}]), memory="8Gi"
    )

    result = stored(pod, judged(pod))

    assert (
        result["spec"]["affinity"]
        == required(
            [
                {"matchExpressions": [zone, SHARED, more("card-memory", 8191)]},
                {"matchFields": [name], "matchExpressions": [SHARED, more("card-memory", 8191)]},
            ]
        )["affinity"]
    )


def test_an_alternative_that_matches_no_node_is_not_opened() -> None:
    pod = a_pod(spec=required([{}, {"matchExpressions": []}]), memory="8Gi")

    result = stored(pod, judged(pod))

    assert result["spec"]["affinity"] == pod["spec"]["affinity"]


def test_preferred_affinity_is_kept_beside_what_is_required() -> None:
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}
    pod = a_pod(spec={"affinity": {"nodeAffinity": preferred}}, memory="8Gi")

    result = stored(pod, judged(pod))

    assert result["spec"]["affinity"] == {
        "nodeAffinity": {
            **preferred,
            **affinity([SHARED, more("card-memory", 8191)])["nodeAffinity"],
        }
    }


def test_whose_share_it_is_is_said_where_the_author_might_mean_another_container() -> None:
    """As found: the first of two got the share, and the other one, which computes, no card."""
    two = (a_container("log"), a_container("train"))
    pod = a_pod(*two, fraction="0.5", cores="30")
    first = patched(judged(pod))

    assert first.warnings == (
        "fracgpu.io/fraction is for container 'log', the first of log, train; for another write "
        'its name, as in fracgpu.io/fraction: "train=0.5"',
    )
    default = {"kubectl.kubernetes.io/default-container": "train"}
    owned, said = copy.deepcopy(pod), copy.deepcopy(pod)
    owned["metadata"]["ownerReferences"] = [{"kind": "ReplicaSet"}]
    said["metadata"]["annotations"] |= default
    named, sidecar = a_pod(*two, fraction="log=0.5"), a_pod(init=[two[0]], fraction="0.5")
    for other in (owned, said, named, sidecar, a_pod(fraction="0.5")):
        assert patched(judged(other)).warnings == ()
    assert judged(stored(pod, first)) == Allowed(dialect=OURS)


def test_a_pod_that_names_another_scheduler_keeps_it_with_a_warning() -> None:
    pod = a_pod(spec={"schedulerName": "batch"}, memory="8Gi")

    outcome = judged(pod)

    assert stored(pod, outcome)["spec"]["schedulerName"] == "batch"
    assert isinstance(outcome, Patched)
    assert outcome.warnings == (
        "spec.schedulerName is 'batch', which was left as it is: the pod gets its card only if "
        "that scheduler asks FracGPU's extender, as fracgpu-scheduler does",
    )


def test_without_a_scheduler_of_ours_the_pod_keeps_the_default_one() -> None:
    pod = a_pod(memory="8Gi")

    outcome = judged(pod, rules=AdmissionConfig(scheduler_name=""))

    assert stored(pod, outcome)["spec"]["schedulerName"] == "default-scheduler"
    assert isinstance(outcome, Patched)
    assert outcome.warnings == ()


def test_a_pod_may_keep_its_view_of_the_cards_where_the_administrator_says_so() -> None:
    pod = a_pod(a_container(), a_container("logs"), fraction="train=0.5")

    outcome = judged(pod, rules=AdmissionConfig(void_others=False))

    assert stored(pod, outcome)["spec"]["containers"][1] == a_container("logs")


def test_a_default_class_goes_before_the_most_free_one() -> None:
    rules = AdmissionConfig(card_classes=ClassRule(default_models=("*A30*",)))

    outcome = patched(judged(a_pod(fraction="0.5"), rules=rules))

    assert outcome.granted == "train: 12000 MiB on 1 card (0.5 of a card that shares 24000 MiB)"
    # What was granted before the default was changed stays as it is.
    once = stored(a_pod(fraction="0.5"), judged(a_pod(fraction="0.5")))
    assert judged(once, rules=rules) == Allowed(dialect=OURS)


def test_a_share_of_cards_that_only_labels_speak_of_is_granted_with_a_warning() -> None:
    assert patched(judged(a_pod(fraction="0.5"), [replace(H100S, measured=False)])).warnings == (
        "only node labels report cards that share 81920 MiB; the pod waits until FracGPU's "
        "agent reports one",
    )


KNOWN_KEYS = ", ".join(names.REQUEST_KEYS)
REFUSED = {
    "more memory than any card has": (
        a_pod(memory="100Gi"),
        "fracgpu.io/memory of container 'train' is '102400Mi'; want at most what the largest card "
        "shares, 81920 MiB (80 GiB); '81920Mi' would fit, and so would fracgpu.io/cards: \"2\" "
        "with 51200 MiB on each",
    ),
    "an assignment": (
        a_pod(fraction="0.5", assignment="{}"),
        "fracgpu.io/assignment is '{}'; want no such annotation: only FracGPU writes it, after the "
        "pod is created; leave it out, as kubectl debug --copy-to does with --profile=general",
    ),
    "an assignment on a pod that asks for nothing": (
        a_pod(assignment="{}"),
        "fracgpu.io/assignment is '{}'; want no such annotation: only FracGPU writes it, after the "
        "pod is created; leave it out, as kubectl debug --copy-to does with --profile=general",
    ),
    "a record of what was wired": (
        a_pod(fraction="0.5", wired="GPU-1"),
        "fracgpu.io/wired is 'GPU-1'; want no such annotation: only FracGPU writes it, after the "
        "pod is created; leave it out, as kubectl debug --copy-to does with --profile=general",
    ),
    "a forged grant": (
        a_pod(fraction="0.5", granted="everything"),
        "fracgpu.io/granted is 'everything'; want no such annotation: only the webhook writes it, "
        f"here {HALF_H100!r}; leave it out",
    ),
    "a grant on a pod that asks for nothing": (
        a_pod(granted="everything"),
        "fracgpu.io/granted is 'everything'; want no such annotation: only the webhook writes it; "
        "leave it out",
    ),
    "a container that shows itself cards": (
        a_pod(
            a_container(),
            a_container("peek", env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]),
            fraction="train=0.5",
        ),
        "env NVIDIA_VISIBLE_DEVICES of container 'peek' is 'all'; want no such variable: FracGPU "
        "chooses the cards, and shows them; leave it out",
    ),
    "more containers than anybody runs": (
        a_pod(*(a_container(f"c{n}") for n in range(129)), fraction="c0=0.5"),
        "the pod has 129 containers; want at most 128 in a pod that asks for a share of a card",
    ),
    "annotations that no API server stores": (
        a_pod(fraction="0.5", model="x" * 262_144),
        "the pod's annotations are too long; want at most 262144 characters together",
    ),
    "two containers of one name": (
        a_pod(a_container("a"), init=[a_container("a")], fraction="a=0.5"),
        "the pod has two containers with the name 'a'; want a name for each",
    ),
    "a pod that has chosen its node": (
        a_pod(fraction="0.5", spec={"nodeName": "gpu-1"}),
        "spec.nodeName is 'gpu-1'; want none: a pod with a share of a card has its node and card "
        "chosen together; use a nodeSelector or node affinity",
    ),
}


@pytest.mark.parametrize(("pod", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_a_pod_that_makes_no_sense_is_refused_in_these_words(pod: Json, message: str) -> None:
    assert judged(pod) == Denied(message=message, code=422, reason="Invalid")


def test_a_pod_that_the_api_server_will_refuse_and_that_asks_us_nothing_is_not_ours() -> None:
    twice = "the pod has two containers with the name 'a'; want a name for each"
    unread = f"{twice}; requests in other systems' keys are ignored"

    assert judged(a_pod(a_container("a"), a_container("a"))) == Allowed(warnings=(unread,))


def test_before_the_cluster_is_read_a_request_is_put_off_rather_than_judged() -> None:
    assert judged(a_pod(fraction="0.5"), None) == NOT_READ_YET


def test_nonsense_is_refused_even_before_the_cluster_is_read() -> None:
    assert denied(judged(a_pod(fraction="half"), None)).code == 422


BOUND = a_pod(
    fraction="0.5", granted=HALF_H100, assignment='{"train":[]}', wired="GPU-1", rebalance="evict"
)


def changed(**asks: str | None) -> Json:
    pod = copy.deepcopy(BOUND)
    annotations = pod["metadata"]["annotations"]
    for key, value in asks.items():
        annotations.pop(f"fracgpu.io/{key}", None)
        if value is not None:
            annotations[f"fracgpu.io/{key}"] = value
    return pod


def test_an_update_that_leaves_our_keys_alone_passes_without_the_inventory() -> None:
    pod = changed()
    pod["metadata"]["annotations"]["team"] = "vision"
    pod["metadata"]["labels"] = {"app": "x"}

    assert judged_change(BOUND, pod) == Allowed()


def test_how_a_pod_may_be_moved_can_change_while_it_lives() -> None:
    assert judged_change(BOUND, changed(rebalance="never")) == Allowed()
    assert judged_change(BOUND, changed(rebalance=None)) == Allowed()


CHANGES: dict[str, tuple[dict[str, str | None], str]] = {
    "another assignment": (
        {"assignment": "{}"},
        "fracgpu.io/assignment is '{}'; want no change: only FracGPU writes it",
    ),
    "no assignment any more": (
        {"assignment": None},
        "fracgpu.io/assignment is 'removed'; want no change: only FracGPU writes it",
    ),
    "another grant": (
        {"granted": "more"},
        "fracgpu.io/granted is 'more'; want no change: only FracGPU writes it",
    ),
    "another record of what was wired": (
        {"wired": "GPU-2"},
        "fracgpu.io/wired is 'GPU-2'; want no change: only the node agent writes it",
    ),
    "another share": (
        {"fraction": "1"},
        "fracgpu.io/fraction is '1'; want no change: a pod's request cannot "
        "change after creation; create a new pod",
    ),
    "a way to move it that does not exist": (
        {"rebalance": "nevr"},
        "fracgpu.io/rebalance is 'nevr'; want one of surge, evict, never; did you mean 'never'?",
    ),
    "a key that nobody knows": (
        {"fractoin": "1"},
        f"annotation fracgpu.io/fractoin is '1'; want one of {KNOWN_KEYS}; "
        "did you mean fracgpu.io/fraction?",
    ),
}


@pytest.mark.parametrize(("asks", "message"), CHANGES.values(), ids=CHANGES.keys())
def test_a_change_that_is_not_the_users_to_make_is_refused_in_these_words(
    asks: dict[str, str | None], message: str
) -> None:
    assert judged_change(BOUND, changed(**asks)) == Denied(message=message)


def test_the_node_agent_writes_what_was_wired() -> None:
    assert judged_change(changed(wired=None), BOUND, user=AGENT) == Allowed()


def test_the_node_agent_cannot_write_an_assignment_either() -> None:
    outcome = judged_change(changed(assignment=None), BOUND, user=AGENT)

    assert isinstance(outcome, Denied)


def test_a_pod_that_was_spoilt_before_us_can_still_be_updated() -> None:
    old = a_pod(fractoin="1")
    new = copy.deepcopy(old)
    new["metadata"]["finalizers"] = []

    assert judged_change(old, new) == Allowed()


KEYS = ("zone", "fracgpu.io/share", "fracgpu.io/card-memory", "fracgpu.io/card-class-24000")
LABEL = st.sampled_from(KEYS)
expressions = st.one_of(
    st.fixed_dictionaries(
        {
            "key": LABEL,
            "operator": st.sampled_from(["In", "NotIn"]),
            "values": st.lists(
                st.sampled_from(["true", "a", "2", "30000"]), min_size=1, max_size=2
            ),
        }
    ),
    st.fixed_dictionaries({"key": LABEL, "operator": st.sampled_from(["Exists", "DoesNotExist"])}),
    st.fixed_dictionaries(
        {
            "key": LABEL,
            "operator": st.sampled_from(["Gt", "Lt"]),
            "values": st.lists(st.sampled_from(["0", "1", "20000"]), min_size=1, max_size=1),
        }
    ),
)
terms = st.fixed_dictionaries(
    {},
    optional={
        "matchExpressions": st.none() | st.lists(expressions, max_size=3),
        "matchFields": st.lists(
            st.fixed_dictionaries(
                {
                    "key": st.just("metadata.name"),
                    "operator": st.just("In"),
                    "values": st.just(["n1"]),
                }
            ),
            max_size=1,
        ),
    },
)
affinities = st.none() | st.fixed_dictionaries(
    {},
    optional={
        "nodeAffinity": st.none()
        | st.fixed_dictionaries(
            {},
            optional={
                "requiredDuringSchedulingIgnoredDuringExecution": st.none()
                | st.fixed_dictionaries(
                    {}, optional={"nodeSelectorTerms": st.none() | st.lists(terms, max_size=3)}
                )
            },
        )
    },
)
shares = st.sampled_from(["0.5", "1", "25%", "0.333", "0.00001", "1%"])
memories = st.sampled_from(["1Mi", "8Gi", "23000Mi", "24000Mi", "1.5Gi", "20G"])
resources = st.sampled_from(
    [
        None,
        {},
        {"limits": None},
        {"limits": {"cpu": "1"}, "requests": None},
        {"limits": {"fracgpu.io/gpu-mem": "8k"}},
        {"limits": {"fracgpu.io/gpu-mem": "8192"}, "requests": {"fracgpu.io/gpu-mem": "8192"}},
    ]
)


@st.composite
def pods(draw: st.DrawFn) -> Json:
    """Draw pods as the API server accepts them: readable or not, grantable or not."""
    named = draw(st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=3, unique=True))
    containers = [a_container(name) for name in named]
    for container in containers:
        container["resources"] = copy.deepcopy(draw(resources))
    asks = {}
    for key, values in (
        ("fraction", shares),
        ("memory", memories),
        ("cores", st.sampled_from(["1", "100"])),
        ("cards", st.sampled_from(["1", "2", "4", "7"])),
    ):
        asked = draw(st.lists(st.sampled_from(named), max_size=2, unique=True))
        if asked:
            asks[key] = ",".join(f"{name}={draw(values)}" for name in asked)
    asks |= draw(st.fixed_dictionaries({}, optional={"model": st.sampled_from(["*A30*", "*"])}))
    inits = draw(st.integers(0, len(containers) - 1))
    pod = a_pod(*containers[inits:], init=containers[:inits], also=asks)
    pod["spec"]["affinity"] = draw(affinities)
    pod["spec"]["schedulerName"] = draw(st.sampled_from(["", "default-scheduler", "batch"]))
    return pod


classes_st = st.lists(
    st.builds(
        CardClass,
        capacity_mib=st.sampled_from([Mib(24000), Mib(40960), Mib(81920)]),
        models=st.just(frozenset({"NVIDIA-A30"})),
        most_per_node=st.integers(1, 8),
        cards=st.just(8),
        free_share=st.floats(0, 1),
    ),
    max_size=3,
    unique_by=lambda card_class: card_class.capacity_mib,
)


@given(pods(), classes_st, st.randoms())
def test_admission_is_idempotent(pod: Json, classes: list[CardClass], order: Any) -> None:
    outcome = judged(pod, classes)
    if isinstance(outcome, Denied):
        return
    once = stored(pod, outcome)
    order.shuffle(classes)

    again = judged(once, classes)

    assert again == Allowed(warnings=outcome.warnings, dialect=outcome.dialect)


@given(pods())
def test_every_container_carries_a_whole_number_of_mib_for_each_of_its_cards(pod: Json) -> None:
    outcome = judged(pod)
    if isinstance(outcome, Denied):
        return
    asked = parse_request(parsed(pod).annotations, specs(parsed(pod)))
    result = parsed(stored(pod, outcome))
    request = parse_request(result.annotations, specs(result))
    if asked is None:
        assert request is None
        return
    assert request is not None

    for before, after in zip(asked.slices, request.slices, strict=True):
        assert after.stated_slots == before.cards
        assert after.stated_mib is not None
        each, rest = divmod(after.stated_mib, before.cards)
        assert rest == 0
        assert before.mib in (None, each)
        if before.share is not None:
            assert any(
                before.share * card_class.capacity_mib
                <= each
                < before.share * card_class.capacity_mib + 1
                for card_class in CLASSES
            )
    for spec in specs(result):
        for key, value in spec.limits.items():
            if key.startswith("fracgpu.io/"):
                assert spec.requests[key] == value


def matches(pod: Json, node: dict[str, str], name: str) -> bool:
    """Report whether the pod's required node affinity allows the node."""
    rules = read_node_rules((), json.dumps(pod["spec"].get("affinity")).encode(), b"")
    return rules.selects(node, node=name)


@given(
    pods(),
    st.dictionaries(LABEL, st.sampled_from(["true", "a", "1", "2", "30000"])),
    st.sampled_from(["n1", "n2"]),
)
def test_a_node_that_matches_after_admission_matched_before_and_is_shared(
    pod: Json, node: dict[str, str], name: str
) -> None:
    outcome = judged(pod)
    if not isinstance(outcome, Patched):
        return
    result = stored(pod, outcome)

    if matches(result, node, name):
        assert matches(pod, node, name)
        assert node.get("fracgpu.io/share") == "true"


NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
OURS_ALONE = Seal(key=b"secret", scope="ml", now=NOON)


def a_granted_pod(seal: Seal, classes: Sequence[CardClass] = CLASSES, **asks: str) -> Json:
    pod = a_pod(also=asks)
    return stored(
        pod, admit_create(parsed(pod), DecisionContext(classes=classes, config=RULES, seal=seal))
    )


def test_a_user_cannot_choose_a_class_by_writing_a_grant() -> None:
    """The forged grant is for half of the less free class, in the webhook's own format."""
    forged = a_granted_pod(Seal(key=b"guess", scope="ml", now=NOON), (A30S, H100S), fraction="0.5")
    text = forged["metadata"]["annotations"]["fracgpu.io/granted"]
    pod = a_pod(fraction="0.5", granted=text)

    outcome = denied(
        admit_create(parsed(pod), DecisionContext(classes=CLASSES, config=RULES, seal=OURS_ALONE))
    )

    assert "want no such annotation: only the webhook writes it" in outcome.message


def test_a_grant_of_this_request_stays_and_one_of_an_earlier_one_must_still_be_true() -> None:
    once = a_granted_pod(OURS_ALONE, fraction="0.00001")
    swapped, later = (A30S, H100S), structs.replace(OURS_ALONE, now=NOON + timedelta(hours=1))

    again = admit_create(
        parsed(once), DecisionContext(classes=swapped, config=RULES, seal=OURS_ALONE)
    )
    exported = admit_create(
        parsed(once), DecisionContext(classes=CLASSES, config=RULES, seal=later)
    )
    outdated = admit_create(
        parsed(once), DecisionContext(classes=swapped, config=RULES, seal=later)
    )

    assert again == Allowed(dialect=OURS)
    assert isinstance(exported, Patched)
    assert [edit.path for edit in exported.edits] == ["/metadata/annotations/fracgpu.io~1granted"]
    assert isinstance(outdated, Denied)


def test_the_share_is_the_default_containers_whatever_a_service_mesh_has_put_first() -> None:
    proxy, train = a_container("proxy"), a_container()
    pod = a_pod(proxy, train, a_container("web"), fraction="0.5", cores="30")
    pod["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"] = "train"

    once = stored(pod, judged(pod))

    need = decode_pod_info(json.dumps(once).encode()).need
    assert need is not None
    assert [(each.name, each.mib, each.cores) for each in need.containers] == [("train", 40960, 30)]
    once["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"] = "web"
    assert judged(once) == Allowed(dialect=OURS), "once it is granted nothing is read from that"


def test_an_item_without_a_name_is_refused_where_it_could_be_for_either_of_two() -> None:
    pod = a_pod(a_container("eval"), a_container(), fraction="eval=0.5, train=0.5", cores="30")
    pod["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"] = "train"

    outcome = judged(pod)

    assert isinstance(outcome, Denied)
    assert outcome.message == (
        "fracgpu.io/cores is '30'; want pairs 'container=item': kubectl.kubernetes.io/"
        "default-container names 'train', and 'eval' before it asks for a share too"
    )


@pytest.mark.parametrize("managed", [[], [{}], [{"fieldsV1": {"f:spec": 3}}], "none", None])
def test_where_it_is_not_known_who_wrote_a_container_the_first_is_meant(managed: object) -> None:
    pod = a_pod(a_container("proxy"), a_container("train"), fraction="0.5")
    pod["metadata"]["managedFields"] = managed

    assert patched(judged(pod)).granted.startswith("proxy: ")


def test_a_share_is_for_the_first_container_that_the_author_wrote() -> None:
    pod = as_sent(a_pod(a_container("train"), a_container("web"), fraction="0.5"))
    pod["spec"]["containers"].insert(0, a_container("proxy"))
    pod["spec"]["containers"].append(a_container("logs"))

    outcome = patched(judged(pod))

    assert outcome.granted.startswith("train: ")
    again = stored(pod, outcome)
    assert judged(again) == Allowed(dialect=OURS)
    named = copy.deepcopy(pod)
    named["metadata"]["annotations"][names.FRACTION] = "logs=0.5"
    assert patched(judged(named)).granted.startswith("logs: ")


def test_a_container_that_a_service_mesh_puts_first_takes_no_share() -> None:
    """Istio and Linkerd hold the others until their proxy has started."""
    pod = a_pod(a_container(), a_container("web"), fraction="0.5", cores="30")
    once = stored(pod, judged(pod))
    meshed = copy.deepcopy(once)
    meshed["spec"]["containers"].insert(0, a_container("proxy"))

    outcome = patched(judged(meshed))

    again = stored(meshed, outcome)
    assert again["metadata"] == once["metadata"]
    assert again["spec"]["containers"][1:] == once["spec"]["containers"]
    assert again["spec"]["containers"][0]["env"] == [VOID]
    assert judged(again) == Allowed(dialect=OURS)
    need = decode_pod_info(json.dumps(again).encode()).need
    assert need is not None
    assert [(each.name, each.mib, each.cores) for each in need.containers] == [("train", 40960, 30)]
