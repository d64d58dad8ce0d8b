"""The two engines besides the local one: Flower's Simulation Runtime (Ray), and a SuperLink."""
