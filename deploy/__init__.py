"""Runs on real devices: the program of a device (node), and the server for the devices."""
