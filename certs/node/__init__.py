"""The files on a control-plane node with which the cluster's kube-scheduler calls the extender.

`node_files` keeps them as desired, `files` replaces a set of files atomically, and
`static_pod` restarts the kube-scheduler that reads them. Start with `node_files.py`.
"""
