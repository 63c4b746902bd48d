"""The flags that all commands share, and the two formats for programs."""

import argparse
import json
from collections.abc import Sequence

import pytest
import yaml

from cli.completion import arguments_of
from cli.flags import ANSWERS, LISTS, Output, add_cluster_flags, encode
from cli.main import COMMANDS

OF_A_CLUSTER = ("cards", "explain", "moves", "plan", "rebalance", "simulate", "uninstall")


def parse(*words: str, formats: Sequence[Output] = LISTS) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_cluster_flags(parser, formats=formats)
    return parser.parse_args(words)


@pytest.mark.parametrize("name", OF_A_CLUSTER)
def test_every_command_on_a_cluster_has_the_same_flags(name: str) -> None:
    flags = set(arguments_of(name)._option_string_actions)

    assert flags >= {"--kubeconfig", "--context", "--request-timeout", "-o", "--output", "--json"}


@pytest.mark.parametrize("name", ["cards", "moves", "plan"])
def test_every_list_of_pods_can_be_restricted_to_a_namespace(name: str) -> None:
    flags = set(arguments_of(name)._option_string_actions)

    assert flags >= {"-n", "--namespace", "-A", "--all-namespaces"}


@pytest.mark.parametrize(
    ("name", "words", "hint"),
    [
        ("cards", ["--nod=gpu-1"], ""),  # argparse completes it
        ("cards", ["--noed=gpu-1"], "did you mean '--node'?"),
        ("moves", ["--wach"], "did you mean '--watch'?"),
        ("doctor", ["--check", "certificate"], "did you mean 'certificates'?"),
        ("certs", ["staus"], "did you mean 'status'?"),
        ("certs", ["status", "--contxt", "x"], "did you mean '--context'?"),
        ("completion", ["bahs"], "did you mean 'bash'?"),
    ],
)
def test_a_misspelt_flag_or_word_is_answered_with_the_nearest(
    name: str, words: Sequence[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = arguments_of(name)

    if not hint:
        parser.parse_args(words)
        return
    with pytest.raises(SystemExit):
        parser.parse_args(words)
    assert hint in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_every_flag_of_every_command_says_what_it_does(name: str) -> None:
    silent = [
        action.option_strings
        for action in arguments_of(name)._actions
        if action.option_strings and not action.help
    ]

    assert silent == []


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ((), Output.TABLE),
        (("-o", "wide"), Output.WIDE),
        (("-o", "text"), Output.TABLE),
        (("--output=yaml",), Output.YAML),
        (("--json",), Output.JSON),
        (("-o", "name"), Output.NAME),
    ],
)
def test_the_format_is_chosen_as_with_kubectl(words: Sequence[str], wanted: Output) -> None:
    assert parse(*words).output is wanted


def test_a_format_that_the_command_lacks_is_refused_with_those_it_has(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        parse("-o", "name", formats=ANSWERS)

    assert "'name'; want one of table, json, yaml" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "seconds"), [("5", 5), ("5s", 5), ("250ms", 0.25), ("2m", 120), ("0", 86_400)]
)
def test_a_timeout_is_written_as_for_kubectl(text: str, seconds: float) -> None:
    assert parse("--request-timeout", text).request_timeout == seconds


@pytest.mark.parametrize("text", ["soon", "-1s", "5 s", "1d", ""])
def test_a_timeout_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(SystemExit):
        parse(f"--request-timeout={text}")


BODY = {"nodes": ({"name": "gpu-1", "heat": None, "model": "显卡\x1b"},)}
READ = {"nodes": [{"name": "gpu-1", "heat": None, "model": "显卡\x1b"}]}


def test_json_and_yaml_have_the_same_answer_and_nothing_that_steers_a_terminal() -> None:
    as_json, as_yaml = encode(BODY, Output.JSON), encode(BODY, Output.YAML)

    assert json.loads(as_json) == yaml.safe_load(as_yaml) == READ
    assert "\x1b" not in as_json + as_yaml


def test_a_stream_is_one_line_or_one_document_at_a_time() -> None:
    lines = "\n".join(encode(BODY, Output.JSON, stream=True) for _ in range(2))
    documents = "\n".join(encode(BODY, Output.YAML, stream=True) for _ in range(2))

    assert [json.loads(line) for line in lines.splitlines()] == [READ, READ]
    assert list(yaml.safe_load_all(documents)) == [READ, READ]
