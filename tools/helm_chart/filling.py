"""Puts values into the fields of the objects."""

import json
from typing import Any, Final

import yaml

from tools.helm_chart.builds import Key
from tools.helm_chart.places import MissingFieldError, append, only_alternative, read, write
from tools.helm_chart.settings import (
    BOOLEAN,
    COMPONENTS,
    MAP,
    TAKEN,
    Component,
    Place,
    Setting,
    TakenOr,
)
from tools.helm_chart.template import (
    ABSENT,
    SPLICED,
    Block,
    Choice,
    Expression,
    Splice,
    Text,
)

Objects = dict[Key, Any]
_CONFIG: Final = "fracgpu-config"
# By which the sidecar of Grafana's chart finds dashboards.
DASHBOARD_LABEL: Final = "grafana_dashboard"
DASHBOARDS_FOLDER: Final = "dashboards"
# An annotation of alerts, as in the mixins of Kubernetes and of the Prometheus operator.
_RUNBOOK: Final = "runbook_url"
_IMAGES: Final = {"fracgpu": "fracgpu.image", "kube-scheduler": "fracgpu.kubeSchedulerImage"}


def complete(objects: Objects, settings: list[Setting]) -> list[Setting]:
    """Return the settings with deploy/'s defaults, and one for each key of our ConfigMap.

    Raises:
        MissingFieldError: deploy/ lacks a field whose value is a default of the chart.
    """
    found = [_with_default(objects, setting) for setting in settings]
    for key, text in find(objects, "ConfigMap", _CONFIG)["data"].items():
        doc = f"The key {key} of the ConfigMap {_CONFIG}; every role reads its own."
        found.append(
            Setting(key=f"config.{key}", doc=doc, schema=MAP, default=yaml.safe_load(text) or {})
        )
    return found


def find(objects: Objects, kind: str, name: str) -> Any:
    """Return an object by kind and name.

    Raises:
        MissingFieldError: there is none, or several.
    """
    matching = [body for key, body in objects.items() if (key[0], key[2]) == (kind, name)]
    if len(matching) != 1:
        raise MissingFieldError(f"deploy/ and the overlays have {len(matching)} {kind} {name}")
    return only_alternative(matching[0])


def _with_default(objects: Objects, setting: Setting) -> Setting:
    if not (setting.default is TAKEN or isinstance(setting.default, TakenOr)):
        return setting
    if setting.key == "prometheus.namespace":
        default: Any = _prometheus_namespace(objects)
    else:
        place = setting.places[0]
        default = read(find(objects, place.kind, place.name), place.path)
    if default is ABSENT and isinstance(setting.default, TakenOr):
        default = setting.default.empty
    if default is ABSENT or isinstance(default, Choice):
        raise MissingFieldError(_lost(setting, setting.places[0]))
    return Setting(
        key=setting.key,
        doc=setting.doc,
        schema=setting.schema,
        default=default,
        places=setting.places,
    )


def _lost(setting: Setting, place: Place) -> str:
    return (
        f"deploy/ no longer has {place.path} in {place.kind} {place.name}, which the value "
        f"{setting.key} fills in: change its place in tools/helm_chart, or remove the value"
    )


def fill(objects: Objects, settings: list[Setting]) -> None:
    """Replace fields of *objects* by what their values say; the settings have their defaults.

    Raises:
        MissingFieldError: deploy/ lacks an object that a value changes.
    """
    for setting in settings:
        for place in setting.places:
            if place.path.startswith("data["):
                continue  # with the hash of its content, in another file
            try:
                write(
                    find(objects, place.kind, place.name),
                    place.path,
                    lambda old, setting=setting: _filled(setting, old),  # type: ignore[misc]
                )
            except MissingFieldError as error:
                raise MissingFieldError(_lost(setting, place)) from error
    for component in COMPONENTS:
        _fill_component(find(objects, component.kind, component.name), component)
    _fill_configuration(objects)
    _fill_kubelet_folder(find(objects, "DaemonSet", "fracgpu-deviceplugin"))
    _fill_by_kind(objects)


def _fill_by_kind(objects: Objects) -> None:
    for labels, _ in _monitoring(objects):
        labels["kubernetes.io/metadata.name"] = Expression(
            ".Values.prometheus.namespace", quoted=True
        )
    for key, body in objects.items():
        _fill_images(body)
        if key[0] == "CustomResourceDefinition":
            note = {"helm.sh/resource-policy": "keep"}
            body["metadata"]["annotations"] = Choice(((".Values.crds.keep", note),), ABSENT)
        if key[0] in ("PodMonitor", "PrometheusRule"):
            labels = find(objects, key[0], key[2])["metadata"]["labels"]
            labels[SPLICED] = Splice(".Values.prometheus.operator.labels")
        if key[0] == "PrometheusRule":
            _fill_runbooks(find(objects, key[0], key[2]))
        if key[0] == "ConfigMap":
            _fill_dashboard(find(objects, key[0], key[2]))


def _fill_runbooks(body: Any) -> None:
    for group in body["spec"]["groups"]:
        for rule in group["rules"]:
            if _RUNBOOK in rule.get("annotations", {}):
                path = json.dumps(rule["annotations"][_RUNBOOK])
                rule["annotations"][_RUNBOOK] = Expression(
                    f'include "fracgpu.runbookUrl" (list . {path})', quoted=True
                )


def _fill_dashboard(body: Any) -> None:
    """Take a dashboard from its file in the chart, where nothing has to be escaped."""
    metadata = body["metadata"]
    if DASHBOARD_LABEL in metadata.get("labels", {}):
        (file,) = body["data"]
        body["data"] = Block(f'(.Files.Glob "{DASHBOARDS_FOLDER}/{file}").AsConfig')
        metadata["labels"][SPLICED] = Splice(".Values.dashboards.labels")


def _filled(setting: Setting, old: Any) -> Any:
    value = f".Values.{setting.key}"
    node: Any = Block(f"toYaml {value}")
    if setting.schema.get("type") in ("integer", "boolean") or setting.schema == BOOLEAN:
        node = Expression(value)
    elif setting.schema.get("type") == "string":
        node = Expression(value, quoted=True)
    if old is not ABSENT and setting.default not in ("", {}, []):
        return node
    return Choice(((value, node),), old)


def _fill_component(body: Any, component: Component) -> None:
    values = f".Values.{component.key}"
    container = f"spec.template.spec.containers[{component.container}]"
    append(body, f"{container}.args", [Splice(f"{values}.extraArgs")])
    extra = Splice(f"{values}.extraEnv")
    if isinstance(read(body, f"{container}.env"), list):
        append(body, f"{container}.env", [extra])
    else:
        extra_env = Block(f"toYaml {values}.extraEnv")
        write(
            body,
            f"{container}.env",
            lambda _: Choice(((f"{values}.extraEnv", extra_env),), ABSENT),
        )
    metadata = read(body, "spec.template.metadata")
    metadata["labels"][SPLICED] = Splice(f"{values}.podLabels")
    scraped = metadata.get("annotations") or {}
    notes: dict[str, Any] = {
        key: Choice(((".Values.prometheus.scrapeAnnotations", value),), ABSENT)
        for key, value in scraped.items()
    }
    notes[SPLICED] = Splice(f"{values}.podAnnotations")
    wanted = f"or .Values.prometheus.scrapeAnnotations {values}.podAnnotations"
    metadata["annotations"] = Choice(
        ((wanted if scraped else f"{values}.podAnnotations", notes),), ABSENT
    )
    spec = read(body, "spec.template.spec")
    secrets = Block("toYaml .Values.imagePullSecrets")
    spec["imagePullSecrets"] = Choice(((".Values.imagePullSecrets", secrets),), ABSENT)


def _fill_configuration(objects: Objects) -> None:
    data = find(objects, "ConfigMap", _CONFIG)["data"]
    for key in data:
        data[key] = Text(f"toYaml .Values.config.{key}")


def _prometheus_namespace(objects: Objects) -> str:
    found = {name for _, name in _monitoring(objects)}
    if len(found) != 1:
        raise MissingFieldError(
            f"the NetworkPolicies of deploy/ open telemetry to the namespaces {sorted(found)}; "
            "the value prometheus.namespace is for one"
        )
    return found.pop()


def _monitoring(objects: Objects) -> list[tuple[dict[str, Any], str]]:
    """Return the namespace selectors in our NetworkPolicies, and whom they select."""
    label = "kubernetes.io/metadata.name"
    return [
        (labels, labels[label])
        for key in objects
        if key[0] == "NetworkPolicy"
        for rule in find(objects, key[0], key[2])["spec"]["ingress"]
        for who in rule.get("from", ())
        if label in (labels := who.get("namespaceSelector", {}).get("matchLabels", {}))
    ]


def _fill_kubelet_folder(body: Any) -> None:
    for volume in read(body, "spec.template.spec.volumes"):
        inner = only_alternative(volume)
        path = inner.get("hostPath", {}).get("path")
        if isinstance(path, str) and path.startswith("/var/lib/kubelet/"):
            rest = path.removeprefix("/var/lib/kubelet")
            text = f'printf "%s{rest}" .Values.deviceplugin.kubeletFolder'
            inner["hostPath"]["path"] = Expression(text, quoted=True)


def _fill_images(body: Any) -> None:
    match body:
        case Choice():
            for inner in (*(branch for _, branch in body.branches), body.otherwise):
                _fill_images(inner)
        case {"image": str(image), "name": _}:
            body["image"] = Expression(f'include "{_helper(image)}" .', quoted=True)
            policy = Expression(".Values.image.pullPolicy")
            body["imagePullPolicy"] = Choice(((".Values.image.pullPolicy", policy),), ABSENT)
        case dict():
            for inner in body.values():
                _fill_images(inner)
        case list():
            for inner in body:
                _fill_images(inner)
        case _:
            pass


def _helper(image: str) -> str:
    name = image.rpartition("/")[2].partition(":")[0]
    if name not in _IMAGES:
        raise MissingFieldError(
            f"deploy/ runs the image {image}, which the chart does not know: tools/helm_chart"
        )
    return _IMAGES[name]
