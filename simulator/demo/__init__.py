"""The demo: every role as a real process around a simulated cluster, observed and judged.

`rig` starts everything, `script` runs the steps, `observer` watches, and `promises` judges.
Start with `rig.py`.
"""
