import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fracgpu.request.dialects import DialectSettings, MemoryUnit, Options
from fracgpu.request.grant import ClassRule
from fracgpu.units import Mib
from webhook.admission_config import AdmissionConfig, WorkloadKind, parse_admission

BASE = AdmissionConfig(scheduler_name="mine", agent_users=frozenset({"agent"}))

EVERY_KEY = """
defaultModel: ["NVIDIA A100*", "*H100*"]
defaultClassMib: 40960
whenNoCapacity: wait
schedulerName: ""
voidOthers: false
grantTemplates: true
labelReservedMib: 600
excludedNamespaces: [kube-system, infra]
dialects: [gpushare, kai]
dialectOptions: {gpushareUnit: MiB}
workloads:
  - group: kubeflow.org
    kind: PyTorchJob
    templates: [spec.pytorchReplicaSpecs.*.template]
"""


def test_what_is_left_out_stays_as_it_was() -> None:
    assert parse_admission("", base=BASE) == BASE


def test_every_key_is_read() -> None:
    assert parse_admission(EVERY_KEY, base=BASE) == AdmissionConfig(
        scheduler_name="",
        agent_users=frozenset({"agent"}),
        card_classes=ClassRule(
            default_models=("NVIDIA-A100*", "*H100*"), default_mib=Mib(40960), wait=True
        ),
        void_others=False,
        grant_templates=True,
        label_reserved_mib=Mib(600),
        excluded_namespaces=frozenset({"kube-system", "infra"}),
        dialects=DialectSettings(
            dialects=frozenset({"gpushare", "kai"}),
            options=Options(gpushare_unit=MemoryUnit.MIB),
        ),
        workloads=(
            WorkloadKind(
                group="kubeflow.org",
                kind="PyTorchJob",
                templates=("spec.pytorchReplicaSpecs.*.template",),
            ),
        ),
    )


def test_one_model_needs_no_list() -> None:
    assert parse_admission("defaultModel: A30", base=BASE).card_classes.default_models == ("A30",)


PATTERN = (
    "{group: kubeflow.org, kind: PyTorchJob, templates: [spec.pytorchReplicaSpecs.*.template]}"
)
WORKLOADS = f"want a list of {{group, kind, templates}}, e.g. {PATTERN}"


def test_a_workload_that_an_earlier_version_had_to_be_told_of_is_no_mistake() -> None:
    text = (
        "workloads: [{group: jobset.x-k8s.io, kind: JobSet, templates: [spec.template]}]\n"
        "excludedNamespaces: [plain]"
    )

    found = parse_admission(text, base=BASE)

    assert found.workloads == BASE.workloads
    assert "plain" in found.excluded_namespaces


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("voidOther: true", "voidOther is not a key here; did you mean voidOthers?"),
        ("whenNoCapacity: queue", "whenNoCapacity is 'queue'; want refuse or wait"),
        (
            "defaultModel: []",
            "defaultModel is []; want a card model or glob, or a list of them, e.g. 'NVIDIA-A100*'",
        ),
        (
            "defaultModel: 7",
            "defaultModel is 7; want a card model or glob, or a list of them, e.g. 'NVIDIA-A100*'",
        ),
        (
            "defaultClassMib: true",
            "defaultClassMib is True; want the shareable MiB of one card, e.g. 40960",
        ),
        (
            "defaultClassMib: .nan",
            "defaultClassMib is nan; want the shareable MiB of one card, e.g. 40960",
        ),
        ("labelReservedMib: -1", "labelReservedMib is -1; want MiB of each card, e.g. 600"),
        (
            "schedulerName: Über",
            "schedulerName is 'Über'; want the name of a scheduler, or '' to leave each pod its "
            "own",
        ),
        ("voidOthers: 1", "voidOthers is 1; want true or false"),
        ("grantTemplates: yes please", "grantTemplates is 'yes please'; want true or false"),
        (
            "excludedNamespaces: [A_B]",
            "excludedNamespaces is ['A_B']; want a list of namespaces",
        ),
        ("workloads: {}", f"workloads is {{}}; {WORKLOADS}"),
        (
            "workloads: [{group: x.y, kind: Z}]",
            f"workloads is [{{'group': 'x.y', 'kind': 'Z'}}]; {WORKLOADS}",
        ),
        (
            "voidOthers: 1\nwhenNoCapacity: 2",
            "voidOthers is 1; want true or false; whenNoCapacity is 2; want refuse or wait",
        ),
    ],
)
def test_a_mistake_is_named_in_these_words(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=r"want|mean") as refused:
        parse_admission(text, base=BASE)

    assert str(refused.value) == message


def test_a_dialect_that_does_not_exist_is_a_mistake_among_the_others() -> None:
    with pytest.raises(ValueError, match="did you mean 'gpushare'") as refused:
        parse_admission("dialects: [gpushar]\nvoidOthers: 1", base=BASE)

    assert "voidOthers is 1; want true or false" in str(refused.value)


@given(st.text())
def test_any_text_is_rules_or_a_mistake_and_nothing_worse(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert isinstance(parse_admission(text, base=BASE), AdmissionConfig)
