"""The alerts as an object of the Prometheus operator, made of the file for Prometheus itself."""

from pathlib import Path
from typing import Final

from tools.helm_chart.builds import ROOT

RULES: Final = ROOT / "deploy" / "prometheus-operator" / "rules.yaml"
_SOURCE: Final = ROOT / "deploy" / "alerts" / "fracgpu.rules.yaml"
_HEAD: Final = """\
# Made by `make chart` from alerts/fracgpu.rules.yaml: change that instead.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: fracgpu
  namespace: fracgpu-system
  labels: {app.kubernetes.io/part-of: fracgpu}
spec:
"""


def rules_yaml(source: Path = _SOURCE) -> str:
    """Return the PrometheusRule with the groups of *source*, comments and all.

    Raises:
        ValueError: *source* does not begin with its groups.
    """
    lines = source.read_text().splitlines()
    start = lines.index("groups:")
    return _HEAD + "".join(f"  {line}".rstrip() + "\n" for line in lines[start:])
