"""The extender's cache of nodes and pods, kept current by watch events.

`event_handlers` apply the events; `assumptions` are our own Bindings that no event has shown yet;
`comparer` rebuilds the cache from scratch and compares. Start with `event_handlers.py`.
"""
