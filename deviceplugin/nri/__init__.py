"""The container runtime asks here before it creates or starts a container: its NRI, our end."""
