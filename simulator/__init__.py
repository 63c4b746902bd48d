"""A cluster in memory: real wire protocols, simulated cards, and nothing of FracGPU's own rules."""
