"""Stands in for cluster-autoscaler: node groups that grow for pending pods and shrink when idle.

Start with `cluster_autoscaler.py`.
"""
