"""A trace in which some pods name card models: which ones, a seeded draw decides.

The openb trace names models only in its gpuspec files, nearly always one model that fits the
fleet's size. Here each pod on cards that names none gets, with a given chance, one or two models
that are equally likely, however few cards of them there are; some node must be able to hold it.
"""

import csv
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

NODE_FILE: Final = "openb_node_list_gpu_node.csv"
_MOST_MODELS: Final = 2
_SEED: Final = 7
# A model with fewer cards than this (of 6,212) is a curiosity: two single cards of one model would
# be asked for by hundreds of pods, and the trace would measure only how few there are.
_FEWEST_CARDS: Final = 16

Row = dict[str, str]


def write_named(source: Path, target: Path, *, trace: str, percent: int) -> None:
    """Copy a trace from one folder to another, with *percent* of its pods on cards naming models.

    The files keep their names, so that the referee takes its published orders of arrival.
    """
    nodes = _rows(source / NODE_FILE)
    (target / NODE_FILE).write_bytes((source / NODE_FILE).read_bytes())
    pods = [{**row, "gpu_spec": row.get("gpu_spec") or ""} for row in _rows(source / _pods(trace))]
    named = list(name_models(nodes, pods, percent=percent))
    with (target / _pods(trace)).open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(named[0]))
        writer.writeheader()
        writer.writerows(named)


def name_models(nodes: Sequence[Row], pods: Iterable[Row], *, percent: int) -> Iterable[Row]:
    """Yield each pod as it is, or with models; the same arguments always give the same pods."""
    dice = random.Random(_SEED)  # noqa: S311 - no secret
    models = _models(nodes)
    for pod in sorted(pods, key=lambda it: it["name"]):
        wants_cards = int(pod["num_gpu"]) > 0
        if wants_cards and not pod["gpu_spec"] and dice.random() * 100 < percent:
            able = {it["model"] for it in nodes if _holds(it, pod)}
            chosen: set[str] = set()
            while not chosen & able:
                chosen = set(dice.sample(models, dice.randint(1, _MOST_MODELS)))
            yield {**pod, "gpu_spec": "|".join(sorted(chosen))}
        else:
            yield pod


def _models(nodes: Iterable[Row]) -> list[str]:
    cards: dict[str, int] = {}
    for it in nodes:
        cards[it["model"]] = cards.get(it["model"], 0) + int(it["gpu"])
    return sorted(model for model, count in cards.items() if count >= _FEWEST_CARDS)


def _holds(node: Mapping[str, str], pod: Mapping[str, str]) -> bool:
    have, asked = ("gpu", "cpu_milli", "memory_mib"), ("num_gpu", "cpu_milli", "memory_mib")
    return all(int(node[has]) >= int(pod[want]) for has, want in zip(have, asked, strict=True))


def _pods(trace: str) -> str:
    return f"openb_pod_list_{trace}.csv"


def _rows(path: Path) -> list[Row]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
