"""How fast the extender answers: where all nodes are equal (`benchmark`), and where none is."""
