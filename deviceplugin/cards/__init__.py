"""The cards of this node, however they are read.

`interface` is what the agent needs of cards; `nvml` implements it for real ones, and the simulator
has its own. `xid` explains the driver's error codes. Start with `interface.py`.
"""
