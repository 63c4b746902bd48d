"""Request handling without HTTP: paths, queries, media types, verbs and streams.

`handlers` passes a request on to `lists`, `watches`, `discovery` or the registry;
`bodies` and `versioning` read and write objects. Start with `handlers.py`.
"""
