/* The room of the devices in one network. `room.nearby` loads this file when it needs it. */

import { ROOM_OPTIONS, room } from "./room.js";
import { Servers } from "./servers.js";

/** @import { RoomOptions } from "../client.d.ts" */

/**
 * Enter the room of this device's network. The first available server chooses its topic.
 *
 * @param {RoomOptions} options
 */
export async function nearby(options) {
  const { signal = new AbortController().signal } = options;
  const servers = new Servers(options, signal, () => {}, ROOM_OPTIONS);
  const { topic } = await servers.first((client) => client.nearby({ signal }));
  return room(topic, options);
}
