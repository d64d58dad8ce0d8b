"""A machine whose environment names proxies, of which none answers."""

DEAD = "http://127.0.0.1:9"
KINDS = ("http", "https", "all", "grpc")
EXCEPTIONS = ("no_proxy", "NO_PROXY", "no_grpc_proxy")


def dead_proxies(monkeypatch):
    """Let all connections that go by a proxy fail, whoever reads which spelling."""
    for kind in KINDS:
        for name in (f"{kind}_proxy", f"{kind}_proxy".upper()):
            monkeypatch.setenv(name, DEAD)
    for name in EXCEPTIONS:
        monkeypatch.setenv(name, "")  # put back at the end, whatever was set meanwhile
