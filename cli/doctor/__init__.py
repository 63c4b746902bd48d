"""Gathers the facts for `fracgpu doctor`, at once and each with a limit; nothing is written.

The checks themselves are in `fracgpu/doctor/`. Start with `gathering.py`.
"""
