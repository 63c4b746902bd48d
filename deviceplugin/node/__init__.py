"""The cards of this node as the cluster sees them: inventory, health, Node object, annotations.

`inventory` holds the cards as last seen, `capacity` computes the desired Node object, and
`node_status` writes that. Start with `inventory.py`.
"""
