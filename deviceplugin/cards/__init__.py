"""The cards of this node, however they are read.

`interface` is what the agent needs to know of cards; `nvml` reads real ones, and the simulator has
its own. `xid` says what the driver means by its error codes. Start with `interface.py`.
"""
