"""The simulated API server, laid out as k8s.io/apiserver is.

A request comes in at `server`, is understood by `endpoints`, passes `admission`, is carried out by
`registry` and ends in the storage of `apimachinery`. Start with `server.py`.
"""
