"""The node agent: hands the promised card, and no other, to the container, and reports cards."""
