"""What of the chart is written by what reads it: the schema of its values, and request keys."""

import json
from pathlib import Path
from textwrap import wrap
from typing import Any, Final

from component.config_keys import ADMISSION, PLACEMENT, POOLS, REBALANCER
from component.placement_config import placement_schema
from component.pool_config import pools_schema
from fracgpu import names
from rebalancer.config import schema as rebalancer_schema
from tools.manifests.rendering import CHART
from webhook.admission_config import BUILT_IN_WORKLOADS
from webhook.admission_config import schema as admission_schema

SCHEMA: Final = CHART / "values.schema.json"
REQUEST_KEYS: Final = CHART / "templates" / "_request_keys.tpl"
WORKLOAD_KINDS: Final = CHART / "templates" / "_workload_kinds.tpl"
_COLUMNS: Final = 92  # at most, where the list is included

# What a binding may do, and for people to notice it. It may not do both Deny and Warn:
# https://kubernetes.io/docs/reference/access-authn-authz/validating-admission-policy/
_ACTIONS: Final = (
    ("Deny",),
    ("Warn",),
    *(("Deny", "Audit"), ("Audit", "Deny"), ("Warn", "Audit"), ("Audit", "Warn")),
)


def schema(source: Path = SCHEMA) -> str:
    """Return the schema in *source* with these two parts as they are read."""
    found = json.loads(source.read_text())
    found["properties"]["config"] = _object(
        {
            ADMISSION: admission_schema(),
            PLACEMENT: placement_schema(),
            POOLS: pools_schema(),
            REBALANCER: rebalancer_schema(),
        }
    )
    actions = {"enum": [list(words) for words in _ACTIONS]}
    found["properties"]["policies"] = _object({"devices": actions})
    return json.dumps(found, indent=2) + "\n"


def request_keys() -> str:
    """Return the template with the annotations by which a pod asks for a share, for CEL."""
    quoted = ", ".join(f"'{key}'" for key in names.REQUEST_KEYS)
    lines = "\n".join(wrap(quoted, width=_COLUMNS, break_long_words=False, break_on_hyphens=False))
    head = "{{/* The annotations of a request, as a list in CEL; written by make manifests. */}}"
    return f'{head}\n{{{{ define "fracgpu.requestKeys" -}}}}\n[{lines}]\n{{{{- end }}}}\n'


def workload_kinds() -> str:
    """Return the rules for other systems' workloads, and in CEL the pod templates of `whole`.

    A part of it that is not there must be no error in CEL, which would refuse the object.
    """
    others = [kind for kind in BUILT_IN_WORKLOADS if "." in kind.group]
    groups: dict[str, list[str]] = {}
    for kind in others:
        groups.setdefault(kind.group, []).append(f"{kind.kind.lower()}s")
    rules = "\n".join(
        f"- apiGroups: [{group}]\n"
        '  apiVersions: ["*"]\n'
        "  operations: [CREATE, UPDATE]\n"
        f"  resources: [{', '.join(resources)}]\n"
        "  scope: Namespaced"
        for group, resources in groups.items()
    )
    paths = dict.fromkeys(path for kind in others for path in kind.templates)
    lists = " +\n".join(map(_in_cel, paths))
    head = "{{/* Workloads of other systems, for webhook.yaml; written by make manifests. */}}"
    return (
        f'{head}\n{{{{ define "fracgpu.otherWorkloads" -}}}}\n{rules}\n{{{{- end }}}}\n'
        f'{{{{ define "fracgpu.otherTemplates" -}}}}\n({lists})\n{{{{- end }}}}\n'
    )


def _in_cel(path: str) -> str:
    above, star, below = path.partition(".*.")
    found = f"whole.{above}.filter(it, {_has('it', below)}).map(it, it.{below})"
    return f"({_has('whole', above)} ?\n{found if star else f'[whole.{above}]'} : [])"


def _has(root: str, path: str) -> str:
    steps = path.split(".")
    places = (".".join((root, *steps[: count + 1])) for count in range(len(steps)))
    return " &&\n".join(f"has({place})" for place in places)


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": properties}
