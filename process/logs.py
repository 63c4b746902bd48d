"""One format of log lines for the whole process: JSON in a pod, colour on a terminal."""

import json
import logging
import sys
from typing import Final, TextIO

import msgspec
import structlog

from process.clock import SystemClock


def configure(
    *, level: str = "info", json: bool | None = None, stream: TextIO | None = None
) -> None:
    """Set up structlog, and the standard library's loggers behind it, for this process.

    Args:
        level: debug, info, warning or error.
        json: one JSON object a line; None means unless *stream* is a terminal.
        stream: where the lines go; standard error by default, so that standard output stays
            free for a command's result.
    """
    out = sys.stderr if stream is None else stream
    as_json = not out.isatty() if json is None else json
    number = logging.getLevelNamesMapping()[level.upper()]
    shared: list[structlog.typing.Processor] = [
        structlog.processors.add_log_level,
        _name_empty_errors,
        _write_time,
    ]
    last = _last_processors(as_json=as_json, colors=out.isatty())
    structlog.configure(
        processors=[*shared, *last],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(file=out),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    # Libraries log much at INFO; theirs are shown from WARNING on, or with our level at debug.
    root.setLevel(number if number <= logging.DEBUG else max(number, logging.WARNING))
    logging.captureWarnings(True)  # noqa: FBT003 - the only argument there is


_ERROR_FIELDS: Final = ("error", "reason")


def _name_empty_errors(
    _logger: object, _method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Write the type of the error that is being handled where its text is empty.

    ``str(TimeoutError())`` is empty, as is that of any error without arguments.
    """
    for field in _ERROR_FIELDS:
        if event.get(field) == "":
            error = sys.exc_info()[1]
            event[field] = "not said" if error is None else type(error).__name__
    return event


_clock: Final = SystemClock()


def _write_time(
    _logger: object, _method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Write the time in UTC, as ISO 8601 with a Z; msgspec does it in a quarter of isoformat's."""
    event["timestamp"] = msgspec.to_builtins(_clock.now())
    return event


# Built once: json.dumps builds another encoder for each line.
_encode: Final = json.JSONEncoder(default=str).encode


def _json_line(logger: object, method: str, event: structlog.typing.EventDict) -> str:
    if "exc_info" in event:
        event = structlog.processors.format_exc_info(logger, method, event)
    return _encode(event)


def _last_processors(*, as_json: bool, colors: bool) -> list[structlog.typing.Processor]:
    if as_json:
        return [_json_line]
    # Rich tracebacks print local variables, and a local may be a private key.
    plain = structlog.dev.plain_traceback
    return [structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=plain)]
