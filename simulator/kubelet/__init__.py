"""One node's kubelet, simulated around real protocols: gRPC sockets and a client of the API.

`device_manager` speaks to device plugins, `pod_worker` takes one pod through its life, and
`container_runtime` stands for containers. Start with `kubelet.py`.
"""
