"""The reference of the commands is made from their parsers, and the page has it."""

from pathlib import Path

from cli.completion import arguments_of
from cli.main import COMMANDS, EXIT_CODES
from cli.reference import HEADING, reference, write

PAGE = Path(__file__).parents[2] / "docs" / "commands.md"


def test_the_page_ends_with_the_reference() -> None:
    _, heading, after = PAGE.read_text(encoding="utf-8").partition(HEADING)

    assert heading + after == reference(), "run: make commands"


def test_every_command_every_flag_and_every_exit_code_is_there() -> None:
    text = reference()

    for name in COMMANDS:
        assert f"### `fracgpu {name}`" in text
        for action in arguments_of(name)._actions:
            for flag in action.option_strings:
                assert f"`{flag}`" in text or flag in ("-h", "--help"), (name, flag)
    assert all(f"| {code} | {meaning} |" in text for code, meaning in EXIT_CODES.items())


def test_the_commands_that_ask_prometheus_are_those_that_the_reference_names() -> None:
    asking = [
        name
        for name in COMMANDS
        if any("--prometheus-url" in line for line in arguments_of(name).format_help().split())
    ]

    named = ", ".join(f"`{name}`" for name in asking[:-1])
    assert f"{named} and `{asking[-1]}`, which ask Prometheus" in reference()


def test_what_stands_before_the_reference_is_kept(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Commands\n\ntext\n\n{HEADING}\nold\n", encoding="utf-8")

    write(page)

    assert page.read_text(encoding="utf-8") == "# Commands\n\ntext\n\n" + reference()
