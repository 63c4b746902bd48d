"""Print which fields each version of Kubernetes serves, for tests/deploy/test_versions.py.

The generated clients carry the fields of the API that they were made from: version N of
``kubernetes-asyncio`` those of Kubernetes 1.N. So, for each version to compare::

    pip install --no-deps --target /tmp/clients/30 kubernetes-asyncio==30.3.1
    ...
    python tests/deploy/kubernetes_fields.py /tmp/clients > tests/deploy/kubernetes_fields.json

Each definition is an object; each of its fields is the type and the minor version that first had it
(the oldest of those compared for all that are older).
"""

import ast
import json
import re
import sys
from pathlib import Path
from typing import Final

# The kinds that we ship; types that they refer to are included.
ROOTS: Final = (
    "CoreV1Event", "V1ClusterRole", "V1ClusterRoleBinding", "V1ConfigMap", "V1CronJob",
    "V1CustomResourceDefinition", "V1DaemonSet", "V1Deployment", "V1DeviceClass",
    "V1EndpointSlice", "V1FlowSchema", "V1Job", "V1Lease", "V1LimitRange",
    "V1MutatingWebhookConfiguration", "V1Namespace", "V1NetworkPolicy", "V1PodDisruptionBudget",
    "V1PriorityClass", "V1ResourceQuota", "V1Role", "V1RoleBinding", "V1RuntimeClass", "V1Secret",
    "V1Service", "V1ServiceAccount", "V1StatefulSet", "V1ValidatingAdmissionPolicy",
    "V1ValidatingAdmissionPolicyBinding", "V1ValidatingWebhookConfiguration",
)  # fmt: skip
_MODEL: Final = re.compile(r"\b(?:V\d\w*|CoreV1Event)\b")


def read_models(folder: Path) -> dict[str, dict[str, str]]:
    """Return definition → field (as in JSON) → type of one unpacked client."""
    models = {}
    for file in (folder / "kubernetes_asyncio/client/models").glob("*.py"):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef):
                models[node.name] = _fields(node)
    return models


def _fields(node: ast.ClassDef) -> dict[str, str]:
    tables = {
        target.id: ast.literal_eval(statement.value)
        for statement in node.body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name) and target.id in ("openapi_types", "attribute_map")
    }
    names = tables.get("attribute_map", {})
    return {
        names[attribute]: str(kind) for attribute, kind in tables.get("openapi_types", {}).items()
    }


def compare(clients: Path) -> dict[str, dict[str, tuple[str, int]]]:
    """Return for each field its type and the first minor version that has it."""
    found: dict[str, dict[str, tuple[str, int]]] = {}
    for minor in sorted(int(folder.name) for folder in clients.iterdir() if folder.name.isdigit()):
        models = read_models(clients / str(minor))
        wanted = [root for root in ROOTS if root in models]
        visited: set[str] = set()
        while wanted:
            name = wanted.pop()
            if name in visited or name not in models:
                continue
            visited.add(name)
            for field, kind in models[name].items():
                _, since = found.setdefault(name, {}).get(field, ("", minor))
                found[name][field] = (kind, since)
                wanted += _MODEL.findall(kind)
    return found


if __name__ == "__main__":
    table = compare(Path(sys.argv[1]))
    rows = ",\n".join(
        f"{json.dumps(name)}: {json.dumps(table[name], sort_keys=True)}" for name in sorted(table)
    )
    sys.stdout.write(f"{{\n{rows}\n}}\n")
