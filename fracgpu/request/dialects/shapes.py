"""The two forms of request in limits that most dialects share, with different keys."""

from dataclasses import dataclass
from fractions import Fraction

from fracgpu import names
from fracgpu.cards.card import FULL_CORES
from fracgpu.errors import RequestError
from fracgpu.k8s.container import ContainerSpec
from fracgpu.request.dialects.amounts import (
    card_count,
    integer,
    limit_field,
    memory_units,
    percent,
    refuse_both,
    refuse_orphan,
)
from fracgpu.request.dialects.dialect import ONE_CARD, ForeignRequest
from fracgpu.request.language import MAX_CARDS


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreAndMemory:
    """Core below 100 is percent of one card and needs memory; 100, 200, ... are whole cards.

    Attributes:
        step: cores below 100 must be a multiple of it.
        unit_mib: MiB in one unit of memory.
    """

    core: str
    memory: str
    unit_mib: int
    step: int = 1

    def read(self, spec: ContainerSpec) -> tuple[ForeignRequest | None, tuple[str, ...]]:
        """Return the request of a container, if it has one, and warnings."""
        core, memory = spec.limits.get(self.core), spec.limits.get(self.memory)
        if core is None and memory is None:
            return None, ()
        mib = None
        if memory is not None:
            field = limit_field(self.memory, spec)
            mib = memory_units(memory, field=field, unit_mib=self.unit_mib)
        amount = 0 if core is None else self._core(core, spec)
        if amount >= FULL_CORES:
            warnings = () if memory is None else (self._useless_memory(spec),)
            return ForeignRequest(
                container=spec.name, cards=amount // FULL_CORES, share=ONE_CARD
            ), warnings
        if mib is None:
            hint = f'write {names.FRACTION}: "{core}%" for a share of a card'
            field = limit_field(self.core, spec)
            refuse_orphan(field, found=core or "", needs=self.memory, hint=hint)
        return ForeignRequest(container=spec.name, mib=mib, cores=amount), ()

    def _core(self, text: str, spec: ContainerSpec) -> int:
        field = limit_field(self.core, spec)
        multiple = f" in steps of {self.step}" if self.step > 1 else ""
        wanted = (
            f"percent of one card from {self.step} to 99{multiple}, or 100 for each whole card "
            f"up to {MAX_CARDS * FULL_CORES}"
        )
        amount = integer(text, field=field, wanted=wanted, low=1, high=MAX_CARDS * FULL_CORES)
        step = FULL_CORES if amount > FULL_CORES else self.step
        if amount % step:
            raise RequestError(field=field, found=text, wanted=wanted)
        return amount

    def _useless_memory(self, spec: ContainerSpec) -> str:
        return (
            f"{limit_field(self.memory, spec)} has no effect beside whole cards, which come with "
            f"all their memory; leave it out"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CountMemoryCores:
    """A number of cards, and on each of them memory (default: all) and cores in percent.

    If *memory_percent* is a resource, memory may be given in percent of a card instead.
    """

    number: str
    memory: str
    cores: str
    memory_percent: str = ""

    def read(self, spec: ContainerSpec, *, unit_mib: int = 1) -> ForeignRequest | None:
        """Return the request of a container, if it has one."""
        number = spec.limits.get(self.number)
        memory, cores = spec.limits.get(self.memory), spec.limits.get(self.cores)
        part = spec.limits.get(self.memory_percent)
        if number is None:
            for key, text in (
                (self.memory, memory),
                (self.memory_percent, part),
                (self.cores, cores),
            ):
                if text is not None:
                    refuse_orphan(limit_field(key, spec), found=text, needs=self.number)
            return None
        if memory is not None and part is not None:
            refuse_both(
                limit_field(self.memory, spec), limit_field(self.memory_percent, spec), found=memory
            )
        cards = card_count(number, field=limit_field(self.number, spec))
        mib = None
        if memory is not None:
            mib = memory_units(memory, field=limit_field(self.memory, spec), unit_mib=unit_mib)
        return ForeignRequest(
            container=spec.name,
            cards=cards,
            share=self._share(part, spec) if mib is None else None,
            mib=mib,
            cores=0 if cores is None else percent(cores, field=limit_field(self.cores, spec)),
        )

    def _share(self, text: str | None, spec: ContainerSpec) -> Fraction:
        if text is None:
            return ONE_CARD
        return Fraction(percent(text, field=limit_field(self.memory_percent, spec)), FULL_CORES)
