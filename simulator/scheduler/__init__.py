"""Stands in for kube-scheduler: one profile, one extender.

`scheduling_queue` says which pod is next, `filters` which nodes could take it, and
`extender_client` asks our extender. Start with `scheduler.py`.
"""
