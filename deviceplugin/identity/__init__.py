"""Whose container starts: by the runtime's NRI, or by kubelet's list and a hook that verifies it.

Start with `starts.py`.
"""
