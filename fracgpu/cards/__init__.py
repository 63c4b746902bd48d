"""Cards and card classes, and their form in the annotations and labels of a Node.

It defines everything that the node agent writes on its Node and that other components read.
Start with `card.py`.
"""
