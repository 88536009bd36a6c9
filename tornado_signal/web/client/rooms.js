/* The rooms of a server. Loaded when a page lists them. */

import { ROOM, topicOf } from "./identity.js";

/** @import { SignalClient } from "./signal-client.js" */

/** @param {string} topic */
export const roomOf = (topic) =>
  topic
    .slice(ROOM.length)
    .replace(/~([\da-f]{1,5}|10[\da-f]{4})~/g, (_, point) => String.fromCodePoint(Number.parseInt(point, 16)));

/** @param {SignalClient} client @param {NonNullable<Parameters<SignalClient["topics"]>[0]>} options */
export async function rooms(client, { prefix = "", ...options }) {
  const { topics, pagination } = await client.topics({ ...options, prefix: prefix ? topicOf(ROOM, prefix) : ROOM });
  return { rooms: topics.map(({ topic, count }) => ({ name: roomOf(topic), members: count })), pagination };
}
