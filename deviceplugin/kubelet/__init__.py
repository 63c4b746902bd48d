"""The conversation with kubelet: registration, device plugin service, PreStart, PodResources.

`device_plugin` serves the protocol, and `pre_start` decides on each start of a container.
Start with `pre_start.py`.
"""
