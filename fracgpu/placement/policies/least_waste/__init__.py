"""The strategy least-waste: place a pod where the cluster is expected to waste least.

`workload_mix` learns which pods are likely, `fill` what will stay idle; `policy` ranks.
Start with `policy.py`.
"""
