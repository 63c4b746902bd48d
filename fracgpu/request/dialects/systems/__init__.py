"""One file for each product whose keys are supported: its keys and a pure parser.

To add one, add a file here and a line in `fracgpu/request/dialects/registry.py`.
Start with `gpushare.py`.
"""
