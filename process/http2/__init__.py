"""HTTP/2 beside HTTP/1.1 on one port: many requests at once on one connection.

`connections` are those of a server, `connection` reads requests and sends answers, `request` is
what both are about, and `state` what the library keeps. Start with `connections.py`.
"""
