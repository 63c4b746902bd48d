"""How busy the cards are according to Prometheus, and whether that can be trusted.

`promql` builds the queries, `prometheus` sends them, and `measured` validates the answers: what is
missing, old or impossible is unknown. Start with `measured.py`.
"""
