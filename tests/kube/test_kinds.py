import pytest

from kube.kinds import DEPLOYMENTS, LEASES, MOVES, NODES, PODS


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        (PODS.path(), "/api/v1/pods"),
        (PODS.path(namespace="ml"), "/api/v1/namespaces/ml/pods"),
        (
            PODS.path(namespace="ml", name="a", subresource="binding"),
            "/api/v1/namespaces/ml/pods/a/binding",
        ),
        (NODES.path(name="n1", subresource="status"), "/api/v1/nodes/n1/status"),
        (DEPLOYMENTS.path(namespace="ml"), "/apis/apps/v1/namespaces/ml/deployments"),
        (
            LEASES.path(namespace="x", name="y"),
            "/apis/coordination.k8s.io/v1/namespaces/x/leases/y",
        ),
    ],
)
def test_a_path_follows_the_layout_of_the_api(path: str, wanted: str) -> None:
    assert path == wanted


def test_a_name_cannot_climb_out_of_its_path() -> None:
    assert NODES.path(name="../pods/a?x=1#y") == "/api/v1/nodes/..%2Fpods%2Fa%3Fx%3D1%23y"


def test_a_namespaced_name_needs_its_namespace() -> None:
    with pytest.raises(ValueError, match="Pod 'a' needs a namespace"):
        PODS.path(name="a")


def test_a_cluster_scoped_kind_has_no_namespace() -> None:
    with pytest.raises(ValueError, match="Node has no namespace; got 'ml'"):
        NODES.path(namespace="ml")


def test_an_empty_name_is_not_the_collection() -> None:
    with pytest.raises(ValueError, match="needs a name"):
        NODES.path(name="")


def test_a_collection_has_no_subresource() -> None:
    with pytest.raises(ValueError, match="needs a name"):
        NODES.path(subresource="status")


def test_a_kind_is_named_as_kubectl_names_it() -> None:
    assert [kind.qualified_name for kind in (PODS, DEPLOYMENTS, MOVES)] == [
        "pod", "deployment.apps", "move.fracgpu.io"
    ]  # fmt: skip
