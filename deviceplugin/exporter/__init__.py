"""What cards and pods use, measured: for Prometheus, and for the Node object.

`sampler` reads the cards at a steady pace, `usage` gives each pod its part, `collector` writes the
metrics, and `consistency` compares with what was promised. Start with `sampler.py`.
"""
