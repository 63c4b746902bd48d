"""Parts that several roles share: watchers of one object, and the leader gate.

Above kube, process and fracgpu, below the roles, which say by what prefix their metrics go.
Start with `config_watcher.py`.
"""
