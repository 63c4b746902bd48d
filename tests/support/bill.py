"""Whether a bill of materials is what CycloneDX says it has to be."""


def why_not_valid(text: str) -> object | None:
    """Return what the strict schema of CycloneDX 1.6 has against *text*, or None."""
    # To import it takes seconds, also of those who only collect the tests: it compiles the
    # grammar of an IRI for a format that no bill of ours has.
    from cyclonedx.schema import SchemaVersion  # noqa: PLC0415
    from cyclonedx.validation.json import JsonStrictValidator  # noqa: PLC0415

    return JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
