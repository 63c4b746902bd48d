"""The pool catalogue is read strictly, and a mistake says what was wanted."""

import re

import pytest
import yaml

from component.pool_config import parse_pools, pools_schema
from fracgpu.cards.pool_catalogue import Pool, PoolClass
from fracgpu.k8s.node import Taint
from fracgpu.units import Mib

EVERY_KEY = """
a100-80gb:
  models: ["NVIDIA-A100*80GB*", "NVIDIA-A800*"]
  mib: 80960
  pools:
    - name: a100-8
      cards: 8
      slotsPerCard: 16
      labels: {pool: a100, fracgpu.io/isolation-kernel: "true"}
      taints: [{key: nvidia.com/gpu, value: "present", effect: NoSchedule}]
    - {name: a100-1, cards: 1}
t4:
  models: Tesla T4
  mib: 15000
  pools: [{name: t4, cards: 1}]
"""


def test_every_key_is_read() -> None:
    assert parse_pools(EVERY_KEY).classes == (
        PoolClass(
            name="a100-80gb",
            models=("NVIDIA-A100*80GB*", "NVIDIA-A800*"),
            nominal_mib=Mib(80960),
            pools=(
                Pool(
                    name="a100-8",
                    cards=8,
                    slots_per_card=16,
                    labels={"pool": "a100", "fracgpu.io/isolation-kernel": "true"},
                    taints=(Taint(key="nvidia.com/gpu", value="present", effect="NoSchedule"),),
                ),
                Pool(name="a100-1", cards=1),
            ),
        ),
        PoolClass(
            name="t4",
            models=("Tesla T4",),
            nominal_mib=Mib(15000),
            pools=(Pool(name="t4", cards=1),),
        ),
    )


def test_without_a_text_there_is_no_catalogue() -> None:
    assert not parse_pools("")
    assert not parse_pools("{}")


A_CLASS = "{models: A30, mib: 24000, pools: [{name: a30, cards: 2}]}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"A30: {A_CLASS}", "A30 is no name of a class; want small letters"),
        ("a30: 7", "a30 is 7; want a mapping of models, mib, pools"),
        ("a30: {models: A30, mib: 24000}", "a30 has no pools"),
        (
            "a30: {model: A30, models: A30, mib: 24000, pools: [{name: a, cards: 1}]}",
            "a30: model is not a key here; did you mean models?",
        ),
        (
            "a30: {models: [], mib: 24000, pools: [{name: a, cards: 1}]}",
            "a30.models is []; want a model or glob",
        ),
        (
            "a30: {models: '!A30', mib: 24000, pools: [{name: a, cards: 1}]}",
            "a30.models is '!A30'; want a model or glob",
        ),
        (
            "a30: {models: A30, mib: 24Gi, pools: [{name: a, cards: 1}]}",
            "a30.mib is '24Gi'; want the shareable MiB of one card, e.g. 80960",
        ),
        (
            "a30: {models: A30, mib: 79, pools: [{name: a, cards: 1}]}",
            "a30.mib is 79; want the shareable MiB of one card",
        ),
        ("a30: {models: A30, mib: 80, pools: []}", "a30.pools is []; want a list of {name, cards"),
        (
            "a30: {models: A30, mib: 80, pools: [{name: a, cards: true}]}",
            "a30.pools[0].cards is True; want 1 to 64, the cards of each node",
        ),
        (
            "a30: {models: A30, mib: 80, pools: [{name: a, cards: 1, card: 1}]}",
            "a30.pools[0]: card is not a key here; did you mean cards?",
        ),
        (
            "a30: {models: A30, mib: 80, pools: [{name: a, cards: 1, labels: {x: true}}]}",
            "a30.pools[0].labels.x is True; want the value of a label, in quotes",
        ),
        (
            "a30: {models: A30, mib: 80, pools: [{name: a, cards: 1, "
            "labels: {fracgpu.io/share: 'true'}}]}",
            "a30.pools[0].labels has fracgpu.io/share, which follows from the class; leave it out",
        ),
        (
            "a30: {models: A30, mib: 80, pools: [{name: a, cards: 1, taints: [{key: x}]}]}",
            "a30.pools[0].taints[0] has no effect",
        ),
        (
            "a30: {models: A30, mib: 80, pools: [{name: a, cards: 1, "
            "taints: [{key: x, effect: Never}]}]}",
            "a30.pools[0].taints[0].effect is 'Never'; want one of NoSchedule",
        ),
        *(
            (
                f"mi: {{models: '{glob}', mib: 80, pools: [{{name: a, cards: 1}}]}}",
                f"mi.models has '{glob}', which may match cards of both vendors; want it to begin "
                "with AMD for AMD's cards",
            )
            for glob in ("*MI300X*", "A?D*", "[ab]*", "a*")
        ),
        (
            f"a30: {A_CLASS}\nb30: {{models: B30, mib: 80, pools: [{{name: a30, cards: 1}}]}}",
            "two pools are named a30; want each name once",
        ),
        (
            f"a30: {A_CLASS}\nany: {{models: 'NVIDIA*', mib: 80, pools: [{{name: b, cards: 1}}]}}\n"
            "a100: {models: 'nvidia*a100*', mib: 80, pools: [{name: c, cards: 1}]}",
            "any and a100 overlap: 'NVIDIA*' and 'nvidia*a100*' match the same models; want "
            "globs by which each model is of one class",
        ),
    ],
)
def test_a_mistake_is_refused_with_what_was_wanted(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_pools(text)


@pytest.mark.parametrize("glob", ["AMD-Instinct-MI300X*", "amd*", "A100*", "NVIDIA-A*", "Tesla?T4"])
def test_a_glob_of_one_vendors_models_is_taken(glob: str) -> None:
    assert parse_pools(f"a: {{models: '{glob}', mib: 80, pools: [{{name: a, cards: 1}}]}}")


def test_all_mistakes_are_listed_at_once() -> None:
    with pytest.raises(ValueError, match=r"a\.mib is 1.*; b\.mib is 2") as refused:
        parse_pools(
            "a: {models: A, mib: 1, pools: [{name: a, cards: 1}]}\n"
            "b: {models: B, mib: 2, pools: [{name: b, cards: 1}]}"
        )

    assert str(refused.value).count("want") == 2


def test_a_class_that_promises_more_than_a_measured_card_is_refused() -> None:
    text = f"a30: {A_CLASS}"
    assert parse_pools(text, measured={"A30": Mib(24000), "T4": Mib(80)})

    with pytest.raises(
        ValueError,
        match=r"a30\.mib is 24000, but a card A30 shares 23920 MiB; want at most 23920",
    ):
        parse_pools(text, measured={"A30": Mib(23920)})


def test_the_charts_schema_knows_the_same_keys() -> None:
    known = pools_schema()["additionalProperties"]
    pool = known["properties"]["pools"]["items"]
    (found, _) = yaml.safe_load(EVERY_KEY).values()

    assert set(known["properties"]) == set(found)
    assert set(pool["properties"]) == set(found["pools"][0])
    assert set(pool["properties"]["taints"]["items"]["properties"]) == {"key", "value", "effect"}
