"""Cards and their classes, and how a node's object tells of them in annotations and labels.

Everything that the node agent writes on its node, and everybody else reads, has its form here.
Start with `card.py`.
"""
