"""The role that makes certificates, keeps them fresh and tells the API server whom to trust.

`authority` knows X.509, `rotation` decides when to renew, `store` keeps Secrets, and `reconciler`
(or `cert_manager`) brings all of it to what is desired. Start with `reconciler.py`.
"""
