"""The two engines beside the local one: Flower's Simulation Runtime (Ray), and a SuperLink."""
