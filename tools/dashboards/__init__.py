"""Writes the Grafana dashboards in deploy/grafana from what is said here.

`panels` has the words, one module the contents of each dashboard, and `grafana` turns them into
Grafana's JSON. Start with `cluster.py`; `make dashboards` runs `__main__.py`.
"""
