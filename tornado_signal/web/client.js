/*
 * Finding peers through tornado-signal and connecting to them. Three layers:
 *
 *   SignalClient                 the API of one server, call by call
 *   publish(topic), join(topic)  WebRTC connections whose data channel is open
 *   pair(topic)                  one such connection, with whichever page comes next
 *   room(topic)                  everybody who is there, connected to everybody
 *
 * client.d.ts and docs/browser-client.md describe them.
 */

// All modules that a room needs are imported here, so that a browser requests all of them at once. That takes one more round trip over
// HTTP/2, and two over HTTP/1.1 with its six connections.
import "./client/data.js";
import "./client/http.js";
import "./client/identity.js";
import "./client/negotiation.js";
import "./client/peer.js";
import "./client/servers.js";
import "./client/socket.js";
import "./client/text.js";

export { join, pair, publish } from "./client/publish.js";
export { room } from "./client/room.js";
export { SignalClient } from "./client/signal-client.js";
export { SignalError } from "./client/timing.js";
