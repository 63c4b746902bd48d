"""One file for each product whose keys we read: it owns the keys, and reads them purely.

A new one is a file here and a line in `fracgpu/request/dialects/registry.py`.
Start with `gpushare.py`.
"""
