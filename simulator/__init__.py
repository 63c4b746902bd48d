"""A cluster in memory: real wire protocols, simulated cards, and nothing of FracGPU's own rules.

`apiserver`, `controllers`, `scheduler`, `kubelet` and `cards` are the cluster, `envtest` starts
real binaries in its place, `demo` and `replay` use it. Start with `apiserver/server.py`.
"""
