"""Admission webhooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simulator.objects import Json
    from simulator.requests import Attributes
    from simulator.resources import Resource
    from simulator.status import Cause


class AllowAll:
    """No webhooks at all."""

    async def mutate(self, attributes: Attributes) -> Json:
        return attributes.value or {}

    async def validate(self, attributes: Attributes) -> None:  # noqa: ARG002
        return None

    def check(self, resource: Resource, value: Json) -> Sequence[Cause]:  # noqa: ARG002
        return ()
