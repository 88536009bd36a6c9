/*
 * Finding peers through tornado-signal and connecting to them. Three layers:
 *
 *   SignalClient                 the API of one server, call by call
 *   publish(topic), join(topic)  WebRTC connections whose data channel is open
 *   pair(topic)                  one such connection, with whichever page comes next
 *   room(topic)                  everybody who is there, connected to everybody
 *
 * client.d.ts describes them. On the wire an offer or answer is the JSON of an RTCSessionDescription, a candidate that
 * of an RTCIceCandidate; for what a room sends see client/room.js.
 *
 * All that a page asks of a server goes over one WebSocket, or over HTTP where there is none to be had: see client/socket.js.
 */

// Imported here although other modules do, too, so that a browser asks for all of them at once: over HTTP/2 in one more
// round trip, over HTTP/1.1 in two, since it has six connections.
import "./client/http.js";
import "./client/identity.js";
import "./client/link.js";
import "./client/negotiation.js";
import "./client/peer.js";
import "./client/servers.js";
import "./client/socket.js";

export { join, publish } from "./client/connect.js";
export { pair } from "./client/pair.js";
export { room } from "./client/room.js";
export { SignalClient } from "./client/signal-client.js";
export { SignalError } from "./client/timing.js";
