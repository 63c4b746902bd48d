"""The JSON schema of the chart's values: ``config`` and ``policies`` from what reads them."""

import json
from pathlib import Path
from typing import Any, Final

from component.config_keys import ADMISSION, PLACEMENT, REBALANCER, placement_schema
from rebalancer.config import schema as rebalancer_schema
from tools.manifests.rendering import CHART
from webhook.admission_config import schema as admission_schema

SCHEMA: Final = CHART / "values.schema.json"

# The words that the policies in templates/policies.yaml and templates/policies-devices.yaml compare
# these keys of the ConfigMap fracgpu-policies with; any other word would count as the first.
POLICIES: Final = {
    "devices": ("warn", "deny", "allow"),
    "foreignAssignments": ("sharing", "everywhere", "nowhere"),
}


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
    found["properties"]["policies"] = _object(
        {key: {"type": "string", "enum": list(words)} for key, words in POLICIES.items()}
    )
    return json.dumps(found, indent=2) + "\n"


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": properties}
