"""What a container runtime asks before it creates a container: its NRI, answered on a thread.

`interface` is what the agent decides about; `plugin` keeps a `connection` to the runtime, whose
bytes `framing` understands and whose messages `messages` translates. Start with `interface.py`.
"""
