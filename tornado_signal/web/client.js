/* The module as servers serve it to pages. docs/browser-client.md describes it, and index.js is that of the npm package. */

// All modules that a room needs are imported here, so that a browser requests them at once.
import "./client/authorization.js";
import "./client/data.js";
import "./client/identity.js";
import "./client/negotiation.js";
import "./client/peer.js";
import "./client/servers.js";
import { servedBy } from "./client/signal-client.js";
import "./client/socket.js";
import "./client/text.js";

export { join, pair, publish } from "./client/publish.js";
export { nearby, room } from "./client/room.js";
export { SignalClient } from "./client/signal-client.js";
export { SignalError } from "./client/timing.js";

const { url } = import.meta; // undefined or that of another file in a bundle
if (/^http[^?#]*\/client\.js(\?|#|$)/.test(url)) {
  servedBy(url);
  // In the background: later the server may be unavailable.
  const parts = [
    import("./client/connect.js"),
    import("./client/files.js"),
    import("./client/http.js"),
    import("./client/media.js"),
  ];
  for (const part of parts) part.catch(() => {});
}
