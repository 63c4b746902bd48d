"""Moves pods off hot cards: reads Prometheus, plans moves, and evicts pods.

`controller` runs the loop: `usage` reads, `fracgpu.disruption` plans, `moves` acts, and
`event_reporter`, `decisions` and `metrics` report. Start with `controller.py`.
"""
