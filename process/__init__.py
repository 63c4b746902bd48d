"""What every process needs: clock, settings, logs, probes, TLS and an orderly stop.

Knows neither Kubernetes nor cards.
Start with `lifecycle.py`.
"""
