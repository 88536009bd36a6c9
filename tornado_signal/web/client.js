/* The module as servers serve it to pages. docs/browser-client.md describes it, and index.js is that of the npm package. */

import { servedBy } from "./client/signal-client.js";

export { SignalError } from "./client/errors.js";
export { join, pair, publish } from "./client/publish.js";
export { nearby, room } from "./client/room.js";
export { SignalClient } from "./client/signal-client.js";

servedBy(import.meta.url);
