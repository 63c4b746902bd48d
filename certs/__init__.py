"""The certs role: issues and renews certificates, and injects CA bundles.

`authority` issues certificates, `rotation` decides when to renew, `store` keeps Secrets, and
`reconciler` (or `cert_manager`) brings all of it to the desired state. Start with
`reconciler.py`.
"""
