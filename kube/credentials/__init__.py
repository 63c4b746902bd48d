"""Where the API server is and how to be known to it: as a pod, or by a kubeconfig.

Start with `in_cluster`, which is all that a pod needs.
"""
