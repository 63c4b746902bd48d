"""What a move does next, phase by phase: pure functions of its record, the facts and the policy.

`step` has the three kinds of a step, `facts` what it depends on. Start with `preparing.py`.
"""
