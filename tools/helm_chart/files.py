"""All files of the chart that are made, by their path in it."""

import tomllib
from pathlib import Path
from typing import Final

import yaml

from tools.helm_chart.builds import ROOT
from tools.helm_chart.chart import merged, templates
from tools.helm_chart.cluster_settings import CLUSTER, DASHBOARDS, IMAGES, NODES, PROMETHEUS
from tools.helm_chart.filling import DASHBOARDS_FOLDER, complete
from tools.helm_chart.settings import COMPONENTS, Setting, settings_of
from tools.helm_chart.values import readme, schema_json, values_yaml

CHART: Final = ROOT / "charts" / "fracgpu"
_BY_HAND: Final = frozenset({"_helpers.tpl", "NOTES.txt", "checks.yaml"})
# The first version with ValidatingAdmissionPolicy; "-0" also takes suffixes, as in v1.31.2-gke.1.
_KUBERNETES: Final = ">=1.30.0-0"


def written_by_hand(path: Path) -> bool:
    """Report whether a file of the chart is not made from deploy/."""
    return path.name in _BY_HAND


def all_settings() -> list[Setting]:
    """Return the values of the chart in the order of ``values.yaml``, defaults not filled in."""
    return [
        *IMAGES,
        *CLUSTER,
        *NODES,
        *PROMETHEUS,
        *DASHBOARDS,
        *(setting for component in COMPONENTS for setting in settings_of(component)),
    ]


def files() -> dict[str, str]:
    """Return the text of each file.

    Raises:
        BuildError: a kustomization cannot be built.
        ConflictError: two overlays contradict each other.
        MissingFieldError: a value has lost its field in ``deploy/``.
    """
    objects = merged()
    settings = complete(objects, all_settings())
    return {
        "Chart.yaml": _chart_yaml(),
        "README.md": readme(settings),
        "values.yaml": values_yaml(settings),
        "values.schema.json": schema_json(settings),
        **{
            f"{DASHBOARDS_FOLDER}/{file.name}": file.read_text()
            for file in (ROOT / "deploy" / "grafana").glob("*.json")
        },
        **{f"templates/{name}": text for name, text in templates(objects, settings).items()},
    }


def _chart_yaml() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    chart = {
        "apiVersion": "v2",
        "name": "fracgpu",
        "description": project["description"],
        "type": "application",
        "version": project["version"],
        "appVersion": project["version"],
        "kubeVersion": _KUBERNETES,
    }
    return "# Made by `make chart` from pyproject.toml.\n" + yaml.safe_dump(chart, sort_keys=False)
