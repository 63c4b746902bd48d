"""A physical card: what reading it costs, and what the driver says of programs of known use.

Start with `benchmark.py`; `cuda_load.c` is the program, which the tests of `tests/card` use too.
"""
