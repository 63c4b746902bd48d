"""The files on a control-plane node, with which the cluster's own kube-scheduler asks us.

`node_files` keeps them as they should be, `files` replaces a set of files all at once, and
`static_pod` restarts the kube-scheduler that reads them. Start with `node_files.py`.
"""
