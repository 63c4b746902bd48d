"""Parts that several roles share: watchers of one object, and the leader gate.

Above kube, process and fracgpu, below the roles; a role passes its metrics in as callbacks.
Start with `config_watcher.py`.
"""
