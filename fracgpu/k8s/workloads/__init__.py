"""What makes pods and what guards them: controllers, quotas, Services and disruption budgets.

Start with `workload_state.py`.
"""
