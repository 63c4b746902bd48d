"""One node's kubelet, simulated over real protocols: gRPC sockets and the API server.

`device_manager` talks to device plugins, `claim_manager` to drivers of claims, `pod_worker` runs
one pod, and `container_runtime` stands in for containerd. Start with `kubelet.py`.
"""
