"""Keeps Python's collector of cycles out of kube-scheduler's way."""

import asyncio
import gc


async def settle_memory() -> None:
    """Take what was listed out of the collector's sight, then wait for ever.

    It would walk every pod again and again, some hundred milliseconds in the middle of a request,
    and find nothing: what the informers hold has no cycles.
    """
    gc.collect()
    gc.freeze()
    await asyncio.Event().wait()
