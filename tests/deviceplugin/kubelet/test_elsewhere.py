"""Which holders of slots are proven not to be in the middle of a start."""

from typing import Any

import pytest

from deviceplugin.claims import RuntimeContainers, SlotHolder
from deviceplugin.kubelet.elsewhere import pods_elsewhere
from fracgpu.state.pod_info import PodInfo
from tests.deviceplugin.builders import a_container, a_holder, a_pod


def two_pods() -> tuple[list[SlotHolder], PodInfo, PodInfo]:
    """Pods that kubelet has given the same id, on different cards."""
    one = a_pod("one", assigned={"train": [("GPU-a", 1000)]})
    two = a_pod("two", assigned={"train": [("GPU-b", 1000)]})
    return [a_holder("one"), a_holder("two")], one, two


def elsewhere_of(
    holders: list[SlotHolder],
    *pods: PodInfo,
    running: frozenset[tuple[str, str]] = frozenset(),
    exited: frozenset[tuple[str, str, str]] = frozenset(),
) -> frozenset[str]:
    by_key = {(pod.record.namespace, pod.record.name): pod for pod in pods}
    runtime = RuntimeContainers(running=running, exited=exited)
    return pods_elsewhere(frozenset({"s1"}), holders, by_key, runtime=runtime, token="ask-1")


def test_a_pod_is_elsewhere_while_its_container_with_the_ids_runs() -> None:
    holders, one, two = two_pods()

    found = elsewhere_of(holders, one, two, running=frozenset({("uid-one", "train")}))

    assert found == {"uid-one"}


@pytest.mark.parametrize(
    "running",
    [("uid-one", "another"), ("uid-of-its-namesake", "train")],
    ids=["another container of the pod", "an earlier pod of that name"],
)
def test_what_else_runs_says_nothing_about_a_pod(running: tuple[str, str]) -> None:
    holders, one, two = two_pods()

    assert elsewhere_of(holders, one, two, running=frozenset({running})) == frozenset()


def test_of_a_pod_that_was_given_an_id_twice_every_container_must_run() -> None:
    holders = [a_holder("one", "train"), a_holder("one", "serve")]
    one = a_pod("one", containers=[a_container(name, mib=1000) for name in ("train", "serve")])
    train, serve = ("uid-one", "train"), ("uid-one", "serve")

    assert elsewhere_of(holders, one, running=frozenset({train})) == frozenset()
    assert elsewhere_of(holders, one, running=frozenset({train, serve})) == {"uid-one"}


def test_nothing_is_said_of_a_pod_whose_namesake_is_still_listed() -> None:
    holders = [a_holder("one"), a_holder("one", ids="s9"), a_holder("two")]
    _, one, two = two_pods()

    found = elsewhere_of(holders, one, two, running=frozenset({("uid-one", "train")}))

    assert found == frozenset()


def test_a_pod_is_elsewhere_when_another_start_of_it_was_rejected_meanwhile() -> None:
    holders, one, _ = two_pods()
    two = a_pod("two", waiting={"train": "rpc error: [ask-1] kubelet has given ..."})
    late = a_pod("one", waiting={"train": "rpc error: [ask-0] kubelet has given ..."})

    assert elsewhere_of(holders, one, two) == {"uid-two"}
    assert elsewhere_of(holders, late, two) == {"uid-two"}


TRAIN: frozenset[tuple[str, str, str]] = frozenset({("uid-one", "train", "id-train")})


def a_pod_with_a_finished_container(**fields: Any) -> PodInfo:
    """A pod of which ``train``, with the id, has ended, and ``serve`` goes on."""
    default: dict[str, Any] = {
        "restarts": "Never",
        "ended": {"train": 1},
        "phase": "Running",
        "containers": [a_container("train", mib=1000), {"name": "serve"}],
    }
    return a_pod("one", **{**default, **fields})


@pytest.mark.parametrize(("restarts", "code"), [("Never", 0), ("Never", 1), ("OnFailure", 0)])
def test_a_pod_is_elsewhere_if_its_container_with_the_ids_never_starts_again(
    restarts: str, code: int
) -> None:
    one = a_pod_with_a_finished_container(restarts=restarts, ended={"train": code})

    assert elsewhere_of([a_holder("one")], one, exited=TRAIN) == {"uid-one"}


@pytest.mark.parametrize(
    "fields",
    [
        {"restarts": "Always"},
        {"restarts": "Always", "ended": {"train": 0}},
        {"restarts": "OnFailure"},
        {"ended": {}},
        {"ended": {"serve": 0}},
        {"containers": [a_container("train", mib=1000, restart_policy="Never")]},
        {"containers": [{**a_container("train", mib=1000), "restartPolicyRules": [{}]}]},
        {"inits": [{"name": "first", "restartPolicyRules": [{}]}]},
    ],
    ids=[
        "always", "always, at its end", "failed", "not said yet", "another one",
        "a policy of its own", "rules", "rules that restart all",
    ],
)  # fmt: skip
def test_a_container_that_may_start_again_proves_nothing(fields: dict[str, Any]) -> None:
    one = a_pod_with_a_finished_container(**fields)

    assert elsewhere_of([a_holder("one")], one, exited=TRAIN) == frozenset()


@pytest.mark.parametrize(
    "exited",
    [
        frozenset(),
        frozenset({("uid-one", "train", "id-of-a-later-one")}),
        frozenset({("uid-of-its-namesake", "train", "id-train")}),
        frozenset({("uid-one", "serve", "id-train")}),
    ],
    ids=["none", "a later one", "of an earlier pod of that name", "another container"],
)
def test_a_container_that_the_runtime_does_not_know_any_more_may_start_anew(
    exited: frozenset[tuple[str, str, str]],
) -> None:
    one = a_pod_with_a_finished_container()

    assert elsewhere_of([a_holder("one")], one, exited=exited) == frozenset()


@pytest.mark.parametrize("running", [frozenset(), frozenset({("uid-one", "serve")})])
def test_in_a_new_sandbox_the_init_containers_run_again(
    running: frozenset[tuple[str, str]],
) -> None:
    one = a_pod_with_a_finished_container(
        restarts="OnFailure", ended={"train": 0}, inits=[a_container("prepare", mib=1000)]
    )

    found = elsewhere_of([a_holder("one")], one, running=running, exited=TRAIN)

    assert found == ({"uid-one"} if running else frozenset())


def test_of_two_containers_with_an_id_one_may_have_ended_and_the_other_run() -> None:
    holders = [a_holder("one", "train"), a_holder("one", "serve")]
    one = a_pod_with_a_finished_container(
        containers=[a_container(name, mib=1000) for name in ("train", "serve")]
    )
    serve = frozenset({("uid-one", "serve")})

    assert elsewhere_of(holders, one, exited=TRAIN) == frozenset()
    assert elsewhere_of(holders, one, running=serve, exited=TRAIN) == {"uid-one"}


@pytest.mark.parametrize(
    ("running", "elsewhere"),
    [("prepare", True), ("train", True), ("proxy", False), ("", False)],
    ids=["an init container runs", "an app container runs", "a sidecar runs", "nothing runs"],
)
def test_an_init_container_that_kubelet_never_lists_may_be_about_to_start(
    running: str, elsewhere: bool
) -> None:
    one = a_pod(
        "one",
        assigned={"prepare": [("GPU-a", 1000)]},
        inits=[{"name": "proxy", "restartPolicy": "Always"}, a_container("prepare", mib=1000)],
        containers=[{"name": "train"}],
    )

    found = elsewhere_of([], one, running=frozenset({("uid-one", running)}))

    assert found == ({"uid-one"} if elsewhere else frozenset())


def test_an_init_container_of_which_a_start_was_rejected_meanwhile_is_elsewhere() -> None:
    one = a_pod(
        "one",
        inits=[a_container("prepare", mib=1000)],
        waiting={"prepare": "rpc error: [ask-1] several pods"},
    )

    assert elsewhere_of([], one) == {"uid-one"}
