"""The cards of this node as the cluster sees them: inventory, health, Node object, annotations.

`inventory` holds the cards as last seen, `capacity` says what the Node object should show, and
`node_status` writes that. Start with `inventory.py`.
"""
