"""Runs on real devices: the program of a device (node), and the server for the devices."""

from edgewire.machine.surroundings import find_home

find_home()
