"""The part of kube-controller-manager that the loop needs, as plain clients of any API server."""

from simulator.controllers.manager import run_controllers

__all__ = ["run_controllers"]
