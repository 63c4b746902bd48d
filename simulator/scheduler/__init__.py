"""Stands in for kube-scheduler: one profile, one extender.

`scheduling_queue` chooses the next pod, `filters` the nodes that could take it,
`extender_client` calls our extender, and `claims` has devices allocated, by `allocator`. Start with
`scheduler.py`.
"""
