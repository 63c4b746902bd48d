"""The four questions of kube-scheduler: filter, prioritize, preempt, bind.

`server` takes them over HTTP in the JSON of `api`, and one file answers each of them.
Start with `filter.py`, which answers the first two; `bind.py` is the only one that writes.
"""
