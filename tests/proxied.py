"""An environment that names proxies which do not answer."""

DEAD = "http://127.0.0.1:9"
KINDS = ("http", "https", "all", "grpc")
EXCEPTIONS = ("no_proxy", "NO_PROXY")


def dead_proxies(monkeypatch):
    """Make all connections through a proxy fail, for both spellings of the variables."""
    for kind in KINDS:
        for name in (f"{kind}_proxy", f"{kind}_proxy".upper()):
            monkeypatch.setenv(name, DEAD)
    for name in EXCEPTIONS:
        monkeypatch.setenv(name, "")  # restored at the end
