"""Sends a server requests of all kinds without a registered key; prints the answers.

    python -m tests.deploy.outsider HOST:PORT CA-FILE NODE RUN APP-HASH OBJECT...

Each request gives one line of JSON: what was tried, the status, and the body (base64).
"""

import json
import sys
from base64 import b64encode

import httpx
from flwr.proto import fab_pb2, fleet_pb2, heartbeat_pb2, message_pb2, run_pb2
from flwr.proto.node_pb2 import Node
from flwr.supercore.primitives.asymmetric import (
    generate_key_pairs,
    public_key_to_bytes,
    sign_message,
)
from flwr.superlink.main import create_app

from edgewire.deploy.compact_bundle import compact
from edgewire.deploy.signed_header import headers, read_header, sign_header

OURS = [
    "/v1/runtime/edgewire/pull", "/v1/runtime/edgewire/push", "/v1/control/edgewire/runs/",
    "/v1/control/edgewire/fleet", "/docs", "/openapi.json", "/metrics", "/healthz",
    "/v1/fleet/edgewire/enrol", "/v1/control/edgewire/enrol",
]  # fmt: skip


def tries(key, public, node, run, digest, objects):
    """Yield the requests to try: (name, path, body, who signs: "key" or "nobody")."""
    for path in [*create_app().openapi()["paths"], *OURS]:
        for signs in ("key", "nobody"):
            yield f"empty to {path}", path, b"", signs
    me = Node(node_id=node)
    requests = {
        "register-node": fleet_pb2.RegisterNodeFleetRequest(public_key=public),
        "activate-node": fleet_pb2.ActivateNodeRequest(public_key=public, heartbeat_interval=30),
        "deactivate-node": fleet_pb2.DeactivateNodeRequest(node_id=node),
        "unregister-node": fleet_pb2.UnregisterNodeFleetRequest(node_id=node),
        "send-node-heartbeat": heartbeat_pb2.SendNodeHeartbeatRequest(
            node=me, heartbeat_interval=30
        ),
        "pull-messages": fleet_pb2.PullMessagesRequest(node=me),
        "push-messages": fleet_pb2.PushMessagesRequest(node=me),
        "get-run": run_pb2.GetRunRequest(node=me, run_id=run),
        "get-fab": fab_pb2.GetFabRequest(node=me, run_id=run, hash_str=digest),
    }
    for path, request in requests.items():
        for signs in ("key", "nobody"):
            yield f"{path} by {signs}", f"/v1/fleet/{path}", request.SerializeToString(), signs
    for name in objects:
        wanted = message_pb2.PullObjectRequest(node=me, run_id=run, object_id=name)
        yield "pull-object", "/v1/fleet/pull-object", wanted.SerializeToString(), "key"
    bundle = [("request", requests["push-messages"].SerializeToString())]
    signed = sign_header(node, 0, lambda stamp: sign_message(key, stamp))
    yield "compact pull", "/v1/fleet/edgewire/compact/pull", signed, "nobody"
    yield "compact push", "/v1/fleet/edgewire/compact/push", signed + compact(bundle), "nobody"
    yield "compact pull of none", "/v1/fleet/edgewire/compact/pull", b"", "nobody"


def main():
    address, certificate, node, run, digest, *objects = sys.argv[1:]
    key, public = generate_key_pairs()
    public = public_key_to_bytes(public)
    client = httpx.Client(base_url=f"https://{address}", verify=certificate, trust_env=False)

    def signed():
        signed, _ = read_header(sign_header(0, 0, lambda stamp: sign_message(key, stamp)))
        made = headers(public, signed.stamp, signed.signature)
        return made | {"content-type": "application/protobuf"}

    for name, path, body, signs in tries(key, public, int(node), int(run), digest, objects):
        sent = signed() if signs == "key" else {"content-type": "application/protobuf"}
        for method in ("POST", "GET"):
            found = client.request(method, path, content=body, headers=sent)
            print(json.dumps([f"{method} {name}", path, found.status_code,
                              b64encode(found.content).decode()]))  # fmt: skip


if __name__ == "__main__":
    main()
