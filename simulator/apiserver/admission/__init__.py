"""Admission webhooks: which are called, with what, and what their answers mean.

`matching` finds the webhooks of a request, `match_conditions` evaluates CEL. Start with
`webhooks.py`.
"""
