"""HTTP/2 beside HTTP/1.1 on one port: many requests at once on one connection.

`connections` are those of a server, `connection` reads requests and sends answers, and `state` is
what the library keeps. Start with `connections.py`.
"""
