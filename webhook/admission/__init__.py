"""Decides on an object that is about to be stored: allow, patch or deny it.

Pure: `review` decodes the request, `mutation` decides on a new pod, `update` on a stored one and
`workload` on pod templates; `verdict` has the three answers. Start with `mutation.py`.
"""
