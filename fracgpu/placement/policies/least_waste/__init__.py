"""The strategy least-waste: put a pod where the cluster loses least by it.

`fill_sequences` tells what will stay idle, `workload_mix` what pods are likely, `policy` ranks.
Start with `policy.py`.
"""
