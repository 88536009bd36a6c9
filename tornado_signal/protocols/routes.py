"""The routes of all protocols."""

from collections.abc import Iterable
from functools import partial
from typing import Any

from ..http.application import BELOW, Route
from ..relay import Channel
from ..relay.opening import Relay
from . import godot, matchbox, nostr, peerjs, rxdb, tracker, yjs
from .connection import ProtocolConnection
from .endpoint import ProtocolUpgrade
from .rooms import Room


def protocol_routes(relay: Relay, protocols: Iterable[str]) -> dict[str, Route]:
    rooms: dict[Channel, Room] = {}

    def upgrade(
        connection: type[ProtocolConnection], handler: type[ProtocolUpgrade] = ProtocolUpgrade, *shared: Any
    ) -> Route:
        arguments = {"protocol": connection.protocol, "make_receiver": partial(connection, relay, *shared)}
        return Route(connection.pattern, handler, arguments)

    peers = {
        peerjs.PATH: upgrade(peerjs.PeerJsConnection, peerjs.PeerJsUpgrade),
        "/{topic}/id": Route("/{key}/id", peerjs.PeerIdHandler),
        "/{topic}/peers": Route("/{key}/peers", peerjs.PeersHandler, {"relay": relay}),
    }
    documents = upgrade(yjs.YConnection, yjs.YUpgrade)
    swarms = upgrade(tracker.TrackerConnection)
    events = upgrade(nostr.NostrConnection, nostr.NostrUpgrade)
    routes = {
        # Many applications have the option `path: "/peerjs"`, and all paths of the library are below it then.
        "peerjs": [*peers.items(), *((peerjs.PATH + path, route) for path, route in peers.items())],
        "y-webrtc": [(yjs.PATH, documents), (yjs.PATH + BELOW, documents)],  # the original server has no paths
        "tracker": [(tracker.PATH, swarms), (tracker.ANNOUNCE_PATH, swarms)],
        "nostr": [(nostr.PATH, events), (nostr.PATH + "/", events)],  # some clients end each URL with a slash
        "rxdb": [(rxdb.PATH, upgrade(rxdb.RxdbConnection, ProtocolUpgrade, rooms))],
        "matchbox": [(matchbox.PREFIX + "*", upgrade(matchbox.MatchboxConnection, matchbox.MatchboxUpgrade, rooms))],
        "godot": [(godot.PATH, upgrade(godot.GodotConnection, ProtocolUpgrade, rooms))],
    }
    return {path: route for protocol in protocols for path, route in routes[protocol]}
