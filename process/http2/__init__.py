"""HTTP/2 beside HTTP/1.1 on one port: many requests at once on one connection.

`connections` are those of a server, `connection` reads requests and sends answers, `request` is
what both are about, `state` what the library keeps, and `header_blocks` spares it work. Start with
`connections.py`.
"""
