import io
import json
import logging
from pathlib import Path

import pytest
import structlog

from process import logs


class Terminal(io.StringIO):
    """A text stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("field", ["error", "reason"])
def test_an_error_without_a_text_is_logged_by_its_type(field: str) -> None:
    out = io.StringIO()
    logs.configure(stream=out)
    log = structlog.get_logger()

    try:
        raise TimeoutError  # noqa: TRY301 - the text of an error without arguments is the subject
    except TimeoutError as error:
        log.warning("lease_not_renewed", **{field: str(error)})
    log.warning("review_too_slow", **{field: ""})

    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line[field] for line in lines] == ["TimeoutError", "not said"]


def test_off_a_terminal_each_event_is_one_json_object() -> None:
    out = io.StringIO()
    logs.configure(stream=out)

    structlog.get_logger().info("pod_bound", pod="ml/a", gpu_mem_mib=4096)

    line = json.loads(out.getvalue())
    assert line.pop("timestamp").endswith("Z")
    assert line == {"event": "pod_bound", "pod": "ml/a", "gpu_mem_mib": 4096, "level": "info"}


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("caf\u00e9 \U0001f600 \x9b31m", "caf\u00e9 \U0001f600 \x9b31m"),
        ("no \udcff name", "no ? name"),
    ],
)
def test_every_text_is_written_in_ascii_without_control_characters(text: str, read: str) -> None:
    out = io.StringIO()
    logs.configure(stream=out)

    structlog.get_logger().info("file_read", path=text)

    line = out.getvalue()
    assert line.isascii()
    assert json.loads(line)["path"] == read


def test_what_json_does_not_have_is_written_as_its_text() -> None:
    out = io.StringIO()
    logs.configure(stream=out)

    structlog.get_logger().info("it", path=Path("/etc/x"), error=ValueError("no"), key=(1, None))

    line = json.loads(out.getvalue())
    assert (line["path"], line["error"], line["key"]) == ("/etc/x", "no", [1, None])


def test_on_a_terminal_an_event_is_a_line_for_people() -> None:
    out = Terminal()
    logs.configure(stream=out)

    structlog.get_logger().info("pod_bound", pod="ml/a")

    assert "pod_bound" in out.getvalue()
    assert "\x1b[" in out.getvalue()


def test_lines_below_the_level_are_dropped() -> None:
    out = io.StringIO()
    logs.configure(level="warning", stream=out)

    structlog.get_logger().info("quiet")
    structlog.get_logger().warning("loud")

    assert [json.loads(line)["event"] for line in out.getvalue().splitlines()] == ["loud"]


def test_a_librarys_warning_has_the_same_shape_and_its_chatter_is_dropped() -> None:
    out = io.StringIO()
    logs.configure(stream=out)

    logging.getLogger("some.library").info("chatter")
    logging.getLogger("some.library").warning("trouble with %s", "x")

    (line,) = [json.loads(text) for text in out.getvalue().splitlines()]
    assert (line["event"], line["level"], line["logger"]) == (
        "trouble with x", "warning", "some.library",
    )  # fmt: skip


@pytest.mark.parametrize("as_json", [True, False])
def test_a_traceback_is_logged_without_the_values_of_local_variables(as_json: bool) -> None:
    out = Terminal()
    logs.configure(json=as_json, stream=out)

    def fail() -> None:
        password = "hun" + "ter2"
        raise RuntimeError(f"no luck with {len(password)} letters")

    try:
        fail()
    except RuntimeError:
        structlog.get_logger().exception("it_failed")

    assert "Traceback (most recent call last)" in out.getvalue()
    assert "no luck with 7 letters" in out.getvalue()
    assert "hunter2" not in out.getvalue()
