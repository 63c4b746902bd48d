"""The strategy least-waste: place a pod where the cluster is expected to waste least.

`mix` learns which pods are likely, `policy` ranks nodes for them, `order` keeps both up to date.
Start with `policy.py`.
"""
