"""kubelet's APIs: registration, the device plugin service, PreStart and PodResources.

`device_plugin` serves the protocol, and `pre_start` decides whether a container may start.
Start with `pre_start.py`.
"""
