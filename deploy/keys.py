"""Keys."""

CA, SERVER = "ca", "server"
