"""Speed and size, each against a named peer or limit, printed as JSON."""
