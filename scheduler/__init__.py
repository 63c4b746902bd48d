"""The scheduler extender: chooses the cards of a pod, and binds the pod to them.

`cache` holds nodes and pods, `extender` answers kube-scheduler, and `core` combines both without
I/O. `service` connects them to a cluster. Start with `core.py`.
"""
