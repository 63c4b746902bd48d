"""Starts real binaries on loopback: etcd, kube-apiserver, Prometheus.

`control_plane` and `prometheus` run them, `scheduler_configuration` is for a real kube-scheduler,
`ports` finds free ports. Start with `control_plane.py`.
"""
