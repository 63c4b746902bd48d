"""``values.yaml``, its schema and its table in the chart's README, from the settings."""

import json
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, Final

import yaml

from tools.helm_chart.settings import COMPONENTS, Setting

Json = dict[str, Any]
_WIDTH: Final = 100
_LONG_DEFAULT: Final = 60
_HEADER: Final = "# Made by `make chart` from tools/helm_chart and deploy/: change those instead.\n"


def values_yaml(settings: Sequence[Setting]) -> str:
    """Return ``values.yaml``, with each value's meaning above it."""
    return _HEADER + "".join(f"{line}\n" for line in _lines(_tree(settings), 0, ""))


def _tree(settings: Sequence[Setting]) -> Json:
    tree: Json = {}
    for setting in settings:
        *way, last = setting.key.split(".")
        node = tree
        for part in way:
            node = node.setdefault(part, {})
        node[last] = setting
    return tree


def _lines(tree: Json, indent: int, prefix: str) -> Iterator[str]:
    pad = " " * indent
    told = {component.key: component.doc for component in COMPONENTS}
    for key, node in tree.items():
        if isinstance(node, Setting):
            for line in textwrap.wrap(node.doc, _WIDTH - indent - 2):
                yield f"{pad}# {line}"
            yield from (f"{pad}{line}" for line in _dumped(key, node.default))
            continue
        if not indent:
            yield ""
        if prefix + key in told:
            yield f"{pad}# {told[prefix + key]}"
        yield f"{pad}{key}:"
        yield from _lines(node, indent + 2, f"{prefix}{key}.")


def _dumped(key: str, default: Any) -> list[str]:
    if isinstance(default, str) and "\n" in default:
        return [f"{key}: |", *(f"  {line}".rstrip() for line in default.splitlines())]
    return yaml.safe_dump({key: default}, width=_WIDTH, sort_keys=False).splitlines()


def schema_json(settings: Sequence[Setting]) -> str:
    """Return ``values.schema.json``: unknown values and wrong types are errors."""
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the chart fracgpu",
        **_schema(_tree(settings)),
    }
    # Helm itself adds this one for the subcharts of a chart.
    schema["properties"]["global"] = {"type": "object"}
    return json.dumps(schema, indent=2) + "\n"


def _schema(tree: Json) -> Json:
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            key: {"description": node.doc, **node.schema}
            if isinstance(node, Setting)
            else _schema(node)
            for key, node in tree.items()
        },
    }


def readme(settings: Sequence[Setting]) -> str:
    """Return the chart's README: how to install it, and every value."""
    lines = [
        "# The Helm chart of FracGPU",
        "",
        "Made by `make chart` from `deploy/`, `overlays/` and `tools/helm_chart`; only",
        "`templates/_helpers.tpl` and `templates/NOTES.txt` are edited here.",
        "[docs/install.md](../../docs/install.md) says how to install, upgrade and uninstall it,",
        "[decision 26](../../docs/decisions/0026-the-chart-is-made-from-deploy.md) why it is made.",
        "",
        "| value | default | what it is |",
        "|---|---|---|",
    ]
    for setting in settings:
        default = json.dumps(setting.default)
        shown = "see `values.yaml`" if len(default) > _LONG_DEFAULT else f"`{default}`"
        doc = setting.doc.replace("|", "\\|")
        lines.append(f"| `{setting.key}` | {shown} | {doc} |")
    return "\n".join(lines) + "\n"
