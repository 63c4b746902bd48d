"""Faults as the API server words them, and the forms of names that several kinds have.

Source: k8s.io/apimachinery pkg/util/validation and pkg/util/validation/field.
"""

from __future__ import annotations

import re
from typing import Final

from simulator.apiserver.apimachinery.errors import StatusCause
from simulator.objects import encode

LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
SUBDOMAIN_RULE: Final = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used "
    "for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
LABEL_RULE: Final = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and "
    "must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used "
    "for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)


def required(field: str, detail: str = "") -> StatusCause:
    """Return that a field is missing."""
    message = f"Required value: {detail}" if detail else "Required value"
    return StatusCause(field=field, reason="FieldValueRequired", message=message)


def bad(field: str, value: object, detail: str) -> StatusCause:
    """Return that a field has a value that it must not have."""
    shown = encode(value).decode()
    return StatusCause(
        field=field, reason="FieldValueInvalid", message=f"Invalid value: {shown}: {detail}"
    )


def duplicate(field: str, value: str) -> StatusCause:
    """Return that a list has an item twice."""
    return StatusCause(
        field=field, reason="FieldValueDuplicate", message=f'Duplicate value: "{value}"'
    )
