"""The simulated API server, laid out as k8s.io/apiserver is.

`server` receives a request, `endpoints` parses it, `admission` checks it, and `registry` carries it
out on the storage of `apimachinery`. Start with `server.py`.
"""
