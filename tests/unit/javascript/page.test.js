/* A page that is closed, or hidden for the back/forward cache. Node.js has no events of pages, so this file makes them. */

import assert from "node:assert/strict";
import { test } from "node:test";

const page = new EventTarget();
globalThis.addEventListener = page.addEventListener.bind(page);
globalThis.removeEventListener = page.removeEventListener.bind(page);
const { enter, FakeServer, leave, next } = await import("./fake_server.js");

test("a page that is closed withdraws its beacon and ends its connections at once", async () => {
  const server = new FakeServer();
  const rooms = ["alice", "bob"].map((info) => enter(info));
  await Promise.all(rooms.map((each) => next(each, "join")));
  const connections = rooms.map(({ peers }) => [...peers.values()][0].peerConnection);
  assert.equal(server.sessions.size, 2);
  page.dispatchEvent(new Event("pagehide"));
  assert.equal(server.sessions.size, 0);
  assert.deepEqual(
    connections.map(({ connectionState }) => connectionState),
    ["closed", "closed"],
  );
  assert.deepEqual(
    rooms.map(({ peers }) => peers.size),
    [0, 0],
  );
  await leave(...rooms);
});

test("the secret of a tab is locked while the page is shown", async () => {
  const held = new Set();
  const locks = {
    async request(name, _, hold) {
      held.add(name);
      await hold();
      held.delete(name);
    },
  };
  Object.defineProperty(globalThis, "navigator", { value: { locks }, configurable: true });
  globalThis.sessionStorage = {};
  const { named } = await import("../../../tornado_signal/web/client/named.js");
  const sizes = [];
  await named(undefined, "alice");
  sizes.push(held.size);
  for (const [name, fields] of [["pagehide"], ["pageshow", { persisted: true }], ["pagehide"], ["pageshow"]]) {
    page.dispatchEvent(Object.assign(new Event(name), fields));
    await new Promise(setImmediate);
    sizes.push(held.size);
  }
  assert.deepEqual(sizes, [1, 0, 1, 0, 0]);
});
