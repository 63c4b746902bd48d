"""The part of kube-controller-manager that the loop needs, as plain clients of any API server.

`controller` is what each is made of: a queue of keys, informers, owner references; `manager` runs
all of them on one connection. Start with `controller.py`.
"""
