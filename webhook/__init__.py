"""The role that reads what a pod asks for, writes down what was understood, or refuses it.

`server` takes each AdmissionReview, `admission` decides on it, and `card_classes`, `namespaces`
and `admission_config` know what the decision depends on. Start with `server.py`.
"""
