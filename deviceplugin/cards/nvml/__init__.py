"""NVIDIA's cards, read through its management library.

`reader` keeps one `card` for each device, each with a thread of its own, because a call into the
driver may hang. All calls into the library go through `calls`. Start with `reader.py`.
"""
