"""Stands in for kube-scheduler: one profile, one extender.

`scheduling_queue` chooses the next pod, `filters` the nodes that could take it, and
`extender_client` calls our extender. Start with `scheduler.py`.
"""
