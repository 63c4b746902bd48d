"""What every role repeats: watchers of one object, and the gate that only a leader passes.

Above kube, process and fracgpu, below the roles; what a role counts, it hands in as a callback.
Start with `config_watcher.py`.
"""
