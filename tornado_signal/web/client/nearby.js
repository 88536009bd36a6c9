/* The room of the devices in one network. Loaded when a page enters it. */

import { Servers } from "./servers.js";

/** @import { RoomOptions } from "../client.d.ts" */

/**
 * Enter the room of this device's network. The first available server chooses its topic.
 *
 * @template Room
 * @param {RoomOptions} options
 * @param {Record<string, string>} types of further options
 * @param {(topic: string, options: RoomOptions) => Room} room
 */
export async function nearby(options, types, room) {
  const { signal = new AbortController().signal } = options;
  const servers = new Servers(options, signal, () => {}, types);
  const { topic } = await servers.first((client) => client.nearby({ signal }));
  return room(topic, options);
}
