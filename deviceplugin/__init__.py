"""The node agent: gives each container its assigned cards and no other, and reports the cards.

Its packages in the order in which they build on each other: `cards`, `enforcement`, `node`,
`container`, `kubelet`, `exporter`. `claims` decides which container holds which slots. Start with
`kubelet/pre_start.py`, then `service.py`.
"""
