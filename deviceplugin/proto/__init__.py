"""Generated messages of the protocols of kubelet and runtimes; ``make proto`` writes them."""
