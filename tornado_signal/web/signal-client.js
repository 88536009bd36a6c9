/* The entry of the npm package for programs that need only the API of a server. */

export { SignalClient } from "./client/signal-client.js";
export { SignalError } from "./client/timing.js";
