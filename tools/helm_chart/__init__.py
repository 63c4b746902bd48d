"""Writes the Helm chart from ``deploy/``, so that kustomize and Helm install the same objects.

``deploy/`` is the source. What an overlay changes becomes a condition in the chart
(:mod:`tools.helm_chart.variants`), and the fields that users of Helm set become values
(:mod:`tools.helm_chart.settings`). ``make chart`` writes the chart; a test compares it.
"""
