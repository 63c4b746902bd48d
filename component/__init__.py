"""The code shared by the roles' processes, as k8s.io/component-base is for Kubernetes' components.

Watchers of one object that keep its last good value (a key of the ConfigMap, a certificate), the
gate that only a leader passes, the metrics that every role has, and how its process runs. Above
kube, process and fracgpu, below the roles, which say by what prefix their metrics go. Start with
`config_watcher.py`.
"""
