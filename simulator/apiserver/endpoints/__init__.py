"""Requests in, answers out, without HTTP: paths, queries, media types, verbs and streams.

`handlers` takes a request and finds who answers: `lists`, `watches`, `discovery` or the registry;
`bodies` and `versioning` read and write objects. Start with `handlers.py`.
"""
