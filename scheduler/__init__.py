"""The extender of kube-scheduler: which card a pod gets, and the Binding that says so.

`cache` is told of nodes and pods, `extender` answers kube-scheduler, and `core` puts both together
without I/O. `service` wires them to a cluster. Start with `core.py`.
"""
