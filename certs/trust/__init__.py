"""Makes clients trust a new authority before it is used.

`ca_injector` writes bundles into webhook configurations, `rollout` restarts programs that read
theirs only at start, `served_certificates` checks which certificates replicas serve. Start with
`ca_injector.py`.
"""
