"""The part of kube-controller-manager that FracGPU needs, as clients of any API server.

`controller` has what all share: a work queue, informers, owner references; `manager` runs all of
them on one connection. Start with `controller.py`.
"""
