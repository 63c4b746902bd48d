"""Limits of a card's memory: set before a container's first process runs, and proved since.

`interface` is what enforces a limit: NVIDIA's `driver` or the `kernel`. `promises` decides, purely,
who is promised what; `limiter` sets and reads back, and `gate` keeps a container from starting
until then. Start with `limiter.py`.
"""
