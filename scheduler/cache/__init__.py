"""What the extender knows of nodes and pods, kept as fresh as the API server's events allow.

Events arrive in `event_handlers`; `assumptions` are our own Bindings that no event has shown yet;
`comparer` folds everything afresh and compares. Start with `event_handlers.py`.
"""
