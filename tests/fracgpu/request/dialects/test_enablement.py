import pytest

from fracgpu import names
from fracgpu.errors import WireError
from fracgpu.request.dialects import registry
from fracgpu.request.dialects.dialect import MemoryUnit, Options
from fracgpu.request.dialects.registry import (
    DialectSettings,
    EnabledDialects,
    enabled_dialects,
    read_dialect_settings,
)


def test_no_settings_turn_nothing_on() -> None:
    assert read_dialect_settings({"failurePolicy": "Fail"}) == DialectSettings()


def test_every_option_is_read() -> None:
    settings = read_dialect_settings(
        {
            "dialects": ["hami", "kai"],
            "dialectOptions": {
                "gpushareUnit": "MiB",
                "hamiMemoryFactor": 10,
                "hamiDefaultCount": 2,
                "volcanoMemoryFactor": 128,
                "nvidiaReplicas": 4,
                "awsVgpusPerCard": 8,
                "tensorFusionRuns": True,
            },
        }
    )

    assert settings == DialectSettings(
        dialects=frozenset({"hami", "kai"}),
        options=Options(
            gpushare_unit=MemoryUnit.MIB,
            hami_memory_factor=10,
            hami_default_count=2,
            volcano_memory_factor=128,
            nvidia_replicas=4,
            aws_vgpus_per_card=8,
            tensor_fusion_runs=True,
        ),
    )


KNOWN = (
    "gpushareUnit, hamiMemoryFactor, hamiDefaultCount, volcanoMemoryFactor, nvidiaReplicas, "
    "awsVgpusPerCard, tensorFusionRuns, kaiRuns, burst"
)
NAMES = (
    "gpushare, hami, kai, vcuda, qgpu, elastic-gpu, nos, volcano, cce, vgpu-manager, "
    "tensor-fusion, koordinator, aws, nvidia"
)


@pytest.mark.parametrize(
    ("admission", "sentence"),
    [
        ({"dialects": "hami"}, f"dialects: want a list of {NAMES}"),
        ({"dialects": [1]}, f"dialects: want a list of {NAMES}"),
        (
            {"dialects": ["hamy"]},
            f"dialects: 'hamy' does not exist; want some of {NAMES}; did you mean 'hami'?",
        ),
        ({"dialectOptions": []}, f"dialectOptions: want a mapping of {KNOWN}"),
        (
            {"dialectOptions": {"gpushareunit": "MiB"}},
            f"dialectOptions: 'gpushareunit' does not exist; want some of {KNOWN}; did you mean "
            "'gpushareUnit'?",
        ),
        (
            {"dialectOptions": {"gpushareUnit": "MB"}},
            "dialectOptions.gpushareUnit: want MiB or GiB, got 'MB'",
        ),
        (
            {"dialectOptions": {"hamiDefaultCount": True}},
            "dialectOptions.hamiDefaultCount: want a whole number from 1 to 64, got True",
        ),
        (
            {"dialectOptions": {"nvidiaReplicas": 0}},
            "dialectOptions.nvidiaReplicas: want a whole number from 1 to 128, got 0",
        ),
        (
            {"dialectOptions": {"tensorFusionRuns": "yes"}},
            "dialectOptions.tensorFusionRuns: want true or false, got 'yes'",
        ),
    ],
)
def test_a_bad_setting_is_refused_by_name(admission: dict[str, object], sentence: str) -> None:
    with pytest.raises(WireError) as refused:
        read_dialect_settings(admission)

    assert str(refused.value) == sentence


CLUSTER = frozenset({"hami"})


@pytest.mark.parametrize(
    ("label", "dialects"),
    [
        ("kai", {"kai"}),
        ("hami.kai", {"hami", "kai"}),
        ("none", set()),
        ("all", set(registry.NAMES)),
        ("", set()),
    ],
)
def test_a_namespaces_label_goes_before_the_cluster(label: str, dialects: set[str]) -> None:
    labels = {names.DIALECTS_LABEL: label}

    assert enabled_dialects(labels, cluster=CLUSTER) == EnabledDialects(
        dialects=frozenset(dialects)
    )


def test_a_namespace_without_the_label_has_the_clusters_dialects() -> None:
    assert enabled_dialects({"team": "x"}, cluster=CLUSTER) == EnabledDialects(dialects=CLUSTER)
    assert enabled_dialects({}) == EnabledDialects(dialects=frozenset())


def test_an_unknown_name_in_the_label_enables_nothing_and_is_warned_of() -> None:
    assert enabled_dialects({names.DIALECTS_LABEL: "hammi.kai"}) == EnabledDialects(
        dialects=frozenset({"kai"}),
        warnings=(
            "the namespace's label fracgpu.io/dialects names 'hammi'; want names of gpushare, "
            "hami, kai, vcuda, qgpu, elastic-gpu, nos, volcano, cce, vgpu-manager, tensor-fusion, "
            "koordinator, aws, nvidia, joined by dots, or 'all' or 'none'; did you mean 'hami'?",
        ),
    )
