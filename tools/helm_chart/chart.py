"""The chart's templates, made of ``deploy/``, the overlays and the settings."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from tools.helm_chart.builds import ROOT, Key, build, read_documents, without_hashes
from tools.helm_chart.filling import fill
from tools.helm_chart.places import only_alternative
from tools.helm_chart.settings import Setting
from tools.helm_chart.template import ABSENT, Block, Choice, Text, render
from tools.helm_chart.variants import ConflictError, Variant, combine

Json = dict[str, Any]
Objects = dict[Key, Any]

# Overlay → the value that chooses it, and the condition under which it counts.
OVERLAYS: Final[Mapping[str, tuple[str, str]]] = {
    "cert-manager": ("certificates", 'eq .Values.certificates.mode "cert-manager"'),
    "cluster-scheduler/prepare": ("scheduler", 'eq .Values.scheduler.mode "prepare"'),
    "cluster-scheduler": ("scheduler", 'eq .Values.scheduler.mode "cluster"'),
    "simulated-cards": ("cards", ".Values.simulatedCards.enabled"),
    "read-as-node": ("agent", ".Values.deviceplugin.readAsNode"),
    "prometheus-operator": ("operator", 'include "fracgpu.prometheusOperator" .'),
    "grafana": ("dashboards", ".Values.dashboards.enabled"),
    "gke": ("platform", 'eq .Values.platform "gke"'),
    "k3s": ("platform", 'has .Values.platform (list "k3s" "rke2")'),
    "openshift": ("platform", 'eq .Values.platform "openshift"'),
}
_HEADER: Final = "{{{{- /* Made by `make chart` from {source}: change that instead. */ -}}}}\n"
_KINDS: Final[Mapping[str, str]] = {
    "CustomResourceDefinition": ".Values.crds.install",
    "Namespace": ".Values.namespace.create",
    "NetworkPolicy": ".Values.networkPolicies.enabled",
    "PodDisruptionBudget": ".Values.podDisruptionBudgets.enabled",
}
# Without them cert-manager needs an issuer from the values.
_OUR_AUTHORITY: Final = frozenset(
    {("Issuer", "fracgpu-bootstrap"), ("Certificate", "fracgpu-ca"), ("Issuer", "fracgpu")}
)


def merged() -> Objects:
    """Return the objects of ``deploy/`` with a condition wherever an overlay differs.

    Raises:
        BuildError: a folder cannot be built.
        ConflictError: two overlays contradict each other.
    """
    variants = [
        Variant(switch, condition, without_hashes(build(ROOT / "overlays" / folder)))
        for folder, (switch, condition) in OVERLAYS.items()
    ]
    objects: Objects = combine(without_hashes(build(ROOT / "deploy")), variants)
    return objects


def templates(objects: Objects, settings: list[Setting]) -> dict[str, str]:
    """Return the templates, by file name; *objects* are changed."""
    data = _generated_data(objects)
    fill(objects, settings)
    texts: dict[str, str] = {}
    sources = _sources()
    for key in sorted(objects, key=lambda key: (sources[key[0], key[2]], _rank(key), key)):
        source = sources[key[0], key[2]]
        text = _document(key, objects[key])
        file = f"{source.removesuffix('.yaml').replace('/', '-')}.yaml"
        texts[file] = texts.get(file, _HEADER.format(source=f"deploy/{source}")) + text
    texts["_data.tpl"] = data
    return texts


def _document(key: Key, body: Any) -> str:
    conditions = [_KINDS[key[0]]] if key[0] in _KINDS else []
    if (key[0], key[2]) in _OUR_AUTHORITY:
        conditions.append("not .Values.certificates.issuer")
    if isinstance(body, Choice):
        condition, body = _only_branch(key, body)
        conditions.append(condition)
    text = f"---\n{render(body)}"
    if not conditions:
        return text
    told = conditions[0]
    if len(conditions) > 1:
        told = "and " + " ".join(f"({condition})" for condition in conditions)
    return f"{{{{- if {told} }}}}\n{text}{{{{- end }}}}\n"


def _only_branch(key: Key, choice: Choice) -> tuple[str, Json]:
    """Return when an object is there, and the object.

    Raises:
        ConflictError: it differs as a whole between overlays.
    """
    match choice:
        case Choice(((condition, body),), otherwise) if otherwise is ABSENT:
            return condition, body
        case Choice(((condition, body),), otherwise) if body is ABSENT:
            return f"not ({condition})", otherwise
        case _:
            raise ConflictError(f"{key}: several overlays have an object of this name")


def _rank(key: Key) -> int:
    """Accounts and rights before what uses them, as in deploy/."""
    order = ("Namespace", "ServiceAccount", "Role", "RoleBinding", "ClusterRole")
    return order.index(key[0]) if key[0] in order else len(order)


def _generated_data(objects: Objects) -> str:
    """Move the content of generated ConfigMaps to where their names are computed from it."""
    texts = [_HEADER.format(source="the ConfigMaps that kustomize generates")]
    for (kind, _, stem), body in objects.items():
        inner = only_alternative(body)
        if kind == "ConfigMap" and not isinstance(inner["metadata"]["name"], str):
            name = f"fracgpu.data.{stem}"
            data = {
                file: Text(".Values.simulatedCards.cards") if file == "cards.yaml" else content
                for file, content in inner["data"].items()
            }
            texts.append(f'{{{{- define "{name}" -}}}}\n{render(data)}{{{{ end }}}}\n')
            inner["data"] = Block(f'include "{name}" .')
    return "".join(texts)


def _sources() -> dict[tuple[str, str], str]:
    """Return for each object the file of ``deploy/`` in which it is."""
    found = {}
    for file in sorted((ROOT / "deploy").rglob("*.yaml")):
        name = str(file.relative_to(ROOT / "deploy"))
        if file.name == "kustomization.yaml":
            for entry in (yaml.safe_load(file.read_text()) or {}).get("configMapGenerator", ()):
                if entry.get("options", {}).get("disableNameSuffixHash"):
                    found["ConfigMap", entry["name"]] = name
                    continue
                stem = entry["name"].removeprefix("fracgpu-")
                found["ConfigMap", entry["name"]] = str(Path(name).with_name(f"{stem}.yaml"))
            continue
        for body in read_documents(file.read_text()):
            if isinstance(body, dict) and "metadata" in body:
                found.setdefault((body["kind"], body["metadata"]["name"]), name)
    # The only generator outside deploy/.
    found["ConfigMap", "fracgpu-simulated-cards"] = "simulated-cards.yaml"
    return found
