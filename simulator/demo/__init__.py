"""The demo: every role as a real process around a simulated cluster, watched and judged.

`rig` starts everything, `script` plays, `observer` watches, and `promises` judges what was seen.
Start with `rig.py`.
"""
