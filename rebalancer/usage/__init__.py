"""How busy the cards are, as Prometheus tells it, and whether that can be believed.

`promql` writes the queries, `prometheus` asks them, and `measured` judges the answers: what is
missing, old or impossible is unknown. Start with `measured.py`.
"""
