"""One format of log lines for the whole process: JSON in a pod, colour on a terminal."""

import json
import logging
import re
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
    # Rich tracebacks print local variables, and a local may be a private key.
    plain = structlog.dev.plain_traceback
    last: structlog.typing.Processor = (
        _json_line
        if as_json
        else structlog.dev.ConsoleRenderer(colors=out.isatty(), exception_formatter=plain)
    )
    structlog.configure(
        processors=[_complete, last],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(file=out),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[_complete, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, last],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    # Libraries log much at INFO; theirs are shown from WARNING on, or with our level at debug.
    root.setLevel(number if number <= logging.DEBUG else max(number, logging.WARNING))
    logging.captureWarnings(True)  # noqa: FBT003 - the only argument there is


_ERROR_FIELDS: Final = ("error", "reason")

_clock: Final = SystemClock()

_encoder: Final = msgspec.json.Encoder(enc_hook=str)

_BEYOND_ASCII: Final = re.compile("[^\x00-\x7f]")


def _complete(
    logger: object, method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Write the level and the time, in UTC, and what an error is that has no text.

    ``str(TimeoutError())`` is empty, as is that of any error without arguments: then it is the
    type of the error that is being handled.
    """
    event = structlog.processors.add_log_level(logger, method, event)
    for field in _ERROR_FIELDS:
        if event.get(field) == "":
            error = sys.exc_info()[1]
            event[field] = "not said" if error is None else type(error).__name__
    event["timestamp"] = msgspec.to_builtins(_clock.now())  # ISO 8601 with a Z
    return event


def _json_line(logger: object, method: str, event: structlog.typing.EventDict) -> str:
    """Return an event as JSON in ASCII: nothing in it is a control sequence to a terminal."""
    if "exc_info" in event:
        event = structlog.processors.format_exc_info(logger, method, event)
    try:
        line = _encoder.encode(event).decode()
    except UnicodeEncodeError:  # a text that is no Unicode, such as the name of a file
        texts = {key: f"{value}".encode(errors="replace") for key, value in event.items()}
        line = _encoder.encode({key: text.decode() for key, text in texts.items()}).decode()
    if line.isascii():  # nearly every one
        return line
    return _BEYOND_ASCII.sub(lambda found: json.dumps(found[0])[1:-1], line)
