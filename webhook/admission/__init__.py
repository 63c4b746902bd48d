"""Decide what becomes of an object that somebody writes: let it pass, patch it or deny it.

Pure: bytes come in by `review`, `mutation` answers for a new pod, `update` for a stored one and
`workload` for a pod template; `verdict` has the three answers. Start with `mutation.py`.
"""
