"""Who trusts the authority, and how they come to trust a new one before it is used.

`ca_injector` writes bundles into webhook configurations, `rollout` restarts programs that read
theirs only at start, `served_certificates` asks replicas what they serve. Start with
`ca_injector.py`.
"""
