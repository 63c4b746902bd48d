"""The node agent: hands the promised card, and no other, to the container, and reports cards.

Its rooms in the order in which they build on each other: `cards`, `node`, `container`, `kubelet`,
`exporter`. `claims` decides whose slots are whose. Start with `kubelet/pre_start.py`, then
`service.py`.
"""
