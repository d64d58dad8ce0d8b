"""The program of a device (node): main loop, state folder, client of the server."""
