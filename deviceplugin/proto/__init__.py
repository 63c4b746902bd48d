"""Generated messages of the two kubelet protocols we speak; ``make proto`` writes them."""
