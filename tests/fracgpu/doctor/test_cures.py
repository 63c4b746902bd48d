"""Cures keep Helm whole: what a release installed is changed by Helm."""

from fracgpu.doctor.cures import change, install_again
from tests.support.examined import Json, found_by, healthy, shipped

UPGRADE = "helm upgrade gpus charts/fracgpu -n fracgpu-system --reset-then-reuse-values "


def of_helm(kind: str) -> tuple[Json, ...]:
    """Return what deploy/ has of a kind, as Helm installs it."""
    found = shipped(kind)
    for body in found:
        body["metadata"] |= {
            "labels": {"app.kubernetes.io/managed-by": "Helm"},
            "annotations": {
                "meta.helm.sh/release-name": "gpus",
                "meta.helm.sh/release-namespace": "fracgpu-system",
            },
        }
    return found


def test_a_setting_of_helms_configuration_is_changed_by_helm() -> None:
    facts = healthy(
        config_mistakes={"rebalancer": "hotRatio is 9"}, config_maps=of_helm("ConfigMap")
    )

    cure = found_by("configuration", facts).cure

    assert cure == f"{UPGRADE}--set-json config.rebalancer.FIELD=VALUE --force-conflicts"


def test_a_role_that_helm_installed_is_scaled_by_helm() -> None:
    deployments = of_helm("Deployment")
    for body in deployments:
        body["status"] = {"availableReplicas": body["spec"].get("replicas", 1)}
        if body["metadata"]["name"] == "fracgpu-webhook":
            body["spec"]["replicas"] = 0

    cure = found_by("replicas", healthy(deployments=deployments)).cure

    assert cure == f"{UPGRADE}--set webhook.replicas=2 --force-conflicts"


def test_what_is_missing_is_installed_again_in_the_way_it_came() -> None:
    helm = healthy(deployments=of_helm("Deployment"), policies=())

    assert found_by("policies", helm).cure == f"{UPGRADE}--force-conflicts (docs/install.md)"
    assert install_again(healthy()).startswith("kubectl apply --server-side --force-conflicts -k")
    nothing = healthy(
        mutating_webhooks=(), deployments=(), daemon_sets=(), config_maps=(), policies=()
    )
    assert "helm upgrade fracgpu" in install_again(nothing)
    assert ", or kubectl apply" in install_again(nothing)


def test_a_release_that_went_with_its_namespace_is_installed_anew() -> None:
    """Helm keeps a release in its namespace: without it an upgrade finds none."""
    webhooks = of_helm("MutatingWebhookConfiguration")
    facts = healthy(deployments=(), daemon_sets=(), mutating_webhooks=webhooks)

    cure = found_by("installed", facts).cure

    assert cure.startswith(f"{UPGRADE}--install --create-namespace --force-conflicts, with the")


def test_a_label_alone_makes_no_release() -> None:
    labelled = {"metadata": {"labels": {"app.kubernetes.io/managed-by": "Helm"}}}
    annotated = {"metadata": {"annotations": {"meta.helm.sh/release-name": "gpus"}}}

    assert change(labelled, otherwise="by hand") == "by hand"
    assert change(annotated, otherwise="by hand") == "by hand"
