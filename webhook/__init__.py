"""The role that reads what a pod asks for and writes down what was understood, or refuses it."""
