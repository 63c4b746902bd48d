"""How much of a node is expected to stay idle: nodes are filled with pods, in C or in NumPy.

Start with `fill_sequences.py`.
"""
