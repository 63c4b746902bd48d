import pytest

from fracgpu import names
from fracgpu.request.dialects.enablement import EnabledDialects, enabled_dialects
from fracgpu.request.dialects.registry import NAMES

CLUSTER = frozenset({"hami"})


@pytest.mark.parametrize(
    ("label", "dialects"),
    [
        ("kai", {"kai"}),
        ("hami.kai", {"hami", "kai"}),
        ("none", set()),
        ("all", set(NAMES)),
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


def test_a_slip_in_the_label_turns_nothing_on_and_is_told() -> None:
    assert enabled_dialects({names.DIALECTS_LABEL: "hammi.kai"}) == EnabledDialects(
        dialects=frozenset({"kai"}),
        warnings=(
            "the namespace's label fracgpu.io/dialects names 'hammi'; want names of gpushare, "
            "hami, kai, vcuda, qgpu, elastic-gpu, nos, volcano, cce, vgpu-manager, tensor-fusion, "
            "koordinator, aws, nvidia, joined by dots, or 'all' or 'none'; did you mean 'hami'?",
        ),
    )
