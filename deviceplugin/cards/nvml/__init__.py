"""Real cards, read through NVIDIA's management library.

`reader` keeps one `card` for each device, and each of those a thread of its own: a call into the
driver may hang. `calls` is the only way into the library. Start with `reader.py`.
"""
