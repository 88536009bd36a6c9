/* The entry of the npm package for programs that need only the API of a server. */

export { SignalError } from "./client/errors.js";
export { SignalClient } from "./client/signal-client.js";
