"""``fracgpu pools``: the pool catalogue, and what autoscalers have to be told of it."""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from cli.cluster import with_cluster
from cli.flags import ANSWERS, Output, Parser, add_cluster_flags, add_system_namespace_flag, encode
from cli.main import DONE, complain
from cli.pool_templates import (
    cluster_autoscaler_tags,
    each_pool,
    karpenter_objects,
    kubelet_flags,
)
from cli.printers.text import Tone, table_lines
from component.pool_config import KEY, parse_pools
from fracgpu import names
from fracgpu.cards.pool_catalogue import (
    Pool,
    PoolCatalogue,
    PoolClass,
    template_labels,
    template_resources,
)
from kube.client import KubeClient
from kube.errors import NotFound
from kube.kinds import CONFIGMAPS
from kube.objects import decode_object

_CLUSTER_AUTOSCALER: Final = "cluster-autoscaler"
_KARPENTER: Final = "karpenter"

_TAGS_ARE_FOR: Final = """\
# Tags of each pool's Auto Scaling group, by which cluster-autoscaler makes a template while the
# pool has no node. Other providers have fields or metadata of their own for the same. The nodes
# themselves need their labels and taints, too: kubelet's flags are beside each pool."""
_OBJECTS_ARE_FOR: Final = """\
# Merge each NodePool into yours of that name (kubectl patch --type=merge), and apply the
# NodeOverlays, which need Karpenter's feature gate NodeOverlay."""


def main(argv: Sequence[str]) -> int:
    """Print the catalogue; return 1 if there is none, or it is not valid."""
    options = arguments().parse_args(argv)
    if options.file is None:
        return with_cluster("pools", options, lambda client: _from_cluster(client, options))
    try:
        return _print(options.file.read_text(encoding="utf-8"), str(options.file), options)
    except (OSError, UnicodeDecodeError) as error:
        return complain("pools", f"cannot read {options.file}: {error}")


async def _from_cluster(client: KubeClient, options: argparse.Namespace) -> int:
    where = f"ConfigMap {options.system_namespace}/{names.CONFIG_MAP}"
    try:
        body = await client.get(CONFIGMAPS, names.CONFIG_MAP, namespace=options.system_namespace)
    except NotFound:
        return complain("pools", f"there is no {where}")
    text = (decode_object(body).get("data") or {}).get(KEY, "")
    return _print(text, f"key {KEY} of {where}", options)


def _print(text: str, where: str, options: argparse.Namespace) -> int:
    try:
        catalogue = parse_pools(text)
    except ValueError as error:
        return complain("pools", f"{where} is not valid: {error}")
    if not catalogue:
        return complain("pools", f"{where} names no pool; docs/autoscaling.md says how")
    if options.format == _CLUSTER_AUTOSCALER:
        print("\n".join(_tags(catalogue)))
    elif options.format == _KARPENTER:
        print("\n---\n".join(_objects(catalogue)))
    elif options.output is Output.TABLE:
        print("\n".join(_table(catalogue)))
    else:
        rows = [_row(pool_class, pool) for pool_class, pool in each_pool(catalogue)]
        print(encode({"pools": rows}, options.output))
    return DONE


def _tags(catalogue: PoolCatalogue) -> Iterator[str]:
    yield _TAGS_ARE_FOR
    for pool_class, pool in each_pool(catalogue):
        yield f"# kubelet {kubelet_flags(pool_class, pool)}"
        tags = dict(cluster_autoscaler_tags(pool_class, pool))
        yield yaml.safe_dump({pool.name: tags}, sort_keys=False, width=1000).rstrip()


def _objects(catalogue: PoolCatalogue) -> Iterator[str]:
    yield _OBJECTS_ARE_FOR
    for pool_class, pool in each_pool(catalogue):
        for each in karpenter_objects(pool_class, pool):
            yield yaml.safe_dump(each, sort_keys=False).rstrip()


def _row(pool_class: PoolClass, pool: Pool) -> dict[str, Any]:
    return {
        "class": pool_class.name,
        "pool": pool.name,
        "cards": pool.cards,
        "mib": pool_class.mib,
        "models": pool_class.models,
        "labels": dict(template_labels(pool_class, pool)),
        "resources": dict(template_resources(pool_class, pool)),
        "taints": [f"{taint.key}={taint.value}:{taint.effect}" for taint in pool.taints],
    }


def _table(catalogue: PoolCatalogue) -> list[str]:
    rows = [("CLASS", "POOL", "CARDS", "MIB", "MODELS")]
    rows += [
        (each.name, pool.name, str(pool.cards), str(each.mib), ", ".join(each.models))
        for each, pool in each_pool(catalogue)
    ]
    return [line.text for line in table_lines(rows, [Tone.PLAIN] * len(rows))]


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = Parser(
        prog="fracgpu pools",
        description="The pool catalogue: card classes that node pools can offer, with or without "
        "a node.",
    )
    parser.add_argument(
        "--format",
        choices=(_CLUSTER_AUTOSCALER, _KARPENTER),
        help="print what this autoscaler has to be told, instead of a list",
    )
    parser.add_argument(
        "--file", type=Path, metavar="FILE", help="read this instead of the key of the ConfigMap"
    )
    add_system_namespace_flag(parser)
    add_cluster_flags(parser, formats=ANSWERS)
    return parser
