"""Starts real binaries on loopback: etcd, kube-apiserver, Prometheus; the name is the field's.

`control_plane` and `prometheus` run them, `scheduler_configuration` is what a real kube-scheduler
needs, `ports` finds free ones. Start with `control_plane.py`.
"""
