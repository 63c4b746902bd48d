"""``make images``: print the images that a cluster pulls, one a line, for a mirror."""

import argparse
import sys
from pathlib import Path
from typing import Final

import yaml

from tools.manifests.rendering import ROOT

_KUSTOMIZATION: Final = ROOT / "deploy" / "kustomization.yaml"


def images(*, kubernetes: str = "", source: Path = _KUSTOMIZATION) -> list[str]:
    """Return each image of ``deploy/`` with its tag; with *kubernetes* kube-scheduler's is that."""
    found = []
    for image in yaml.safe_load(source.read_text())["images"]:
        tag = image["newTag"]
        if image["name"] == "kube-scheduler" and kubernetes:
            tag = f"v{kubernetes.removeprefix('v')}"
        found.append(f"{image.get('newName', image['name'])}:{tag}")
    return found


def main(words: list[str]) -> int:
    """Print the images; return the process's exit code."""
    parser = argparse.ArgumentParser(prog="make images", description=__doc__)
    parser.add_argument(
        "--kubernetes", default="", help="the cluster's version, e.g. 1.33.5: kube-scheduler's tag"
    )
    for image in images(kubernetes=parser.parse_args(words).kubernetes):
        print(image)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
