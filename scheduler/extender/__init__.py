"""The four verbs of a scheduler extender: filter, prioritize, preempt, bind.

`server` receives them over HTTP in the JSON of `api`, and one module answers each of them.
Start with `filter.py`, which answers the first two; only `bind.py` writes to the API server.
"""
