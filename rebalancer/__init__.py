"""Moves pods off hot cards: reads Prometheus, decides with the core, acts through one door.

`controller` goes round: `usage` reads, `fracgpu.disruption` plans, `moves` acts, and
`event_reporter` and `cycle_metrics` tell. Start with `controller.py`.
"""
