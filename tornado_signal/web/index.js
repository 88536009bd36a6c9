/* The entry of the npm package: client.js without what only pages need that import it from their server. */

export { join, pair, publish } from "./client/publish.js";
export { nearby, room } from "./client/room.js";
export * from "./signal-client.js";
