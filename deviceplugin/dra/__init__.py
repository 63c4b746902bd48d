"""The agent as a driver of dynamic resource allocation: slices, prepared claims, and their gRPC.

Start with `preparer.py`, which decides about a claim whose pod starts.
"""
