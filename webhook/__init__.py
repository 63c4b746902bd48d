"""The admission webhook: grants what a pod requests of cards, or denies the pod with a reason.

`server` receives each AdmissionReview, `admission` decides on it, and `card_classes`, `namespaces`
and `admission_config` hold what the decision depends on. Start with `server.py`.
"""
