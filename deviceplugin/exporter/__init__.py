"""What cards and pods use, measured: for Prometheus, and for the Node object.

`sampler` reads the cards periodically, `usage` attributes the use to pods, `collector` writes the
metrics, and `consistency` compares them with the assignments. Start with `sampler.py`.
"""
