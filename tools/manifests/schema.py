"""The JSON schema of the chart's values: ``config`` and ``policies`` from what reads them."""

import json
from pathlib import Path
from typing import Any, Final

from component.config_keys import ADMISSION, PLACEMENT, REBALANCER, placement_schema
from rebalancer.config import schema as rebalancer_schema
from tools.manifests.rendering import CHART
from webhook.admission_config import schema as admission_schema

SCHEMA: Final = CHART / "values.schema.json"

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
            REBALANCER: rebalancer_schema(),
        }
    )
    actions = {"enum": [list(words) for words in _ACTIONS]}
    found["properties"]["policies"] = _object({"devices": actions})
    return json.dumps(found, indent=2) + "\n"


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": properties}
