/* The WebSocket of a client: when it is opened, checked, replaced and closed, and when HTTP is used instead. */

import assert from "node:assert/strict";
import { afterEach, beforeEach, test } from "node:test";
import { SignalClient } from "../../../tornado_signal/web/client/signal-client.js";
import { Socket, sockets, useSocket } from "./fake_socket.js";

const HEALTH = { status: "ok", timestamp: 1 };
const OFFER = { info: "i", offer: "o", secret: "0123456789abcdef" };
const session = (code) => ({ ...OFFER, code, offerCandidates: [], createdAt: 1, expiresAt: 2 });
const pass = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

let url;
let client;
let asked; // the paths of requests over HTTP
let overHttp; // their response

beforeEach((context) => {
  useSocket();
  Socket.replies = { health: { result: HEALTH }, subscribe: { result: { subscription: 1 } } };
  url = `https://${context.name.replaceAll(/\W+/g, "-")}.example`;
  client = new SignalClient(url);
  asked = [];
  overHttp = () => Response.json(HEALTH);
  context.mock.method(globalThis, "fetch", async (target) => {
    asked.push(new URL(target).pathname);
    return overHttp();
  });
});

afterEach(() => sockets.at(-1)?.onclose?.({ code: 1000, reason: "" }));

test("an unused WebSocket is closed, and none with a subscription or a waiting request", async () => {
  const stop = new AbortController();
  const { signal } = stop;
  const ends = [client.events("lobby", { signal }).next(), client.sessions("empty", { wait: 45, signal })];
  await pass(20_000);
  assert.equal(sockets[0].closed, false);
  stop.abort(new Error("enough"));
  for (const end of ends) await assert.rejects(end, { message: "enough" });
  await client.health();
  for (const name of ["cancel", "unsubscribe"]) assert.ok(sockets[0].methods.includes(name), name);
  for (const { id } of sockets[0].sent) {
    for (const key of ["result", "error"]) sockets[0].receive({ id, [key]: {} }); // they have crossed
  }
  assert.deepEqual([sockets.length, sockets[0].closed], [1, false]);
  await pass(20_000);
  assert.equal(sockets[0].closed, true);
  assert.deepEqual(await client.health(), HEALTH);
  assert.deepEqual([sockets.length, asked], [2, []]);
});

test("a held offer whose caller no longer waits is withdrawn", async () => {
  const stop = new AbortController();
  await client.open();
  const offering = client.offer("lobby", { ...OFFER, hold: true, signal: stop.signal });
  while (!sockets[0].methods.includes("offer")) await new Promise(setImmediate);
  stop.abort(new Error("enough"));
  await assert.rejects(offering, { message: "enough" });
  const { id } = sockets[0].sent.find(({ method }) => method === "offer");
  sockets[0].receive({ id, result: { code: "late" } });
  const { method, params } = sockets[0].sent.at(-1);
  assert.deepEqual([method, params], ["withdraw", { code: "late", side: "offerer", secret: OFFER.secret }]);
});

test("a silent WebSocket is asked for a sign of life, and replaced", async () => {
  delete Socket.replies.health;
  const beganMs = performance.now();
  const events = client.events("lobby");
  const first = events.next();
  const tell = (socket, code) =>
    socket.receive({ params: { subscription: 1, cursor: code, type: "session", data: session(code) } });
  while (!sockets[0]?.methods.includes("subscribe")) await new Promise(setImmediate);
  await pass(100);
  tell(sockets[0], "a");
  assert.equal((await first).value.data.code, "a");
  const second = events.next();
  await pass(10_000);
  assert.deepEqual(sockets[0].methods, ["subscribe"]);
  while (sockets.length < 2) await pass(1000);
  assert.ok(performance.now() - beganMs < 20_000);
  assert.deepEqual([sockets[0].methods, sockets[0].closed], [["subscribe", "health"], true]);
  while (!sockets[1].methods.includes("subscribe")) await pass(100);
  assert.equal(sockets[1].sent.at(-1).params.since, "a");
  await pass(100);
  tell(sockets[1], "b");
  assert.equal((await second).value.data.code, "b");
  await events.return();
});

test("HTTP is used until a slow WebSocket opens", async () => {
  Socket.opens = 3000;
  const beganMs = performance.now();
  assert.deepEqual(await client.health(), HEALTH);
  assert.ok(performance.now() - beganMs < 1500);
  assert.equal(await client.open(), undefined);
  assert.ok(asked.includes("/health"));
  await pass(2500);
  assert.equal((await client.open()).readyState, 1);
  assert.equal(sockets.length, 1);
});

test("a WebSocket that does not open is tried again after minutes", async () => {
  Socket.opens = undefined;
  const opened = await Promise.all([client.open(), client.open(), client.health()]);
  assert.deepEqual(opened, [undefined, undefined, HEALTH]);
  await pass(290_000);
  await client.health();
  assert.equal(sockets.length, 1);
  Socket.opens = 0;
  await pass(20_000);
  await client.health();
  assert.equal(sockets.length, 2);
  assert.equal((await client.open()).readyState, 1);
});

test("a request that is too large for a WebSocket goes over HTTP, which reports why it is refused", async () => {
  overHttp = () => Response.json({ error: "Request entity too large" }, { status: 413 });
  await client.health(); // it works
  const offer = (length) => client.offer("lobby", { ...OFFER, offer: "o".repeat(length) });
  await assert.rejects(offer(300_000), { status: 413 });
  assert.deepEqual([sockets[0].closed, sockets[0].methods, asked], [false, ["health"], ["/lobby/offer"]]);
  const small = offer(2000);
  while (!sockets[0].methods.includes("offer")) await new Promise(setImmediate);
  sockets[0].onclose({ code: 1009, reason: "" }); // of a server with a lower limit
  await assert.rejects(small, { code: "server-unreachable" });
  await assert.rejects(offer(2000), { status: 413 });
  assert.equal(sockets.length, 1);
});

test("a WebSocket is authorized again before the expiry, and replaced for fewer rights", async () => {
  Socket.replies.authorize = { result: {} };
  const made = [];
  const part = (fields) => Buffer.from(JSON.stringify(fields)).toString("base64url");
  const token = async () => {
    made.push(`e30.${part({ exp: Date.now() / 1000 + 600, number: made.length })}.sig`);
    return made.at(-1);
  };
  const events = new SignalClient(url, { token }).events("lobby");
  const first = events.next();
  const authorized = () =>
    sockets.flatMap(({ sent }) =>
      sent.filter(({ method }) => method === "authorize").map(({ params }) => params.token),
    );
  await pass(530_000);
  assert.deepEqual([authorized(), made.length], [made, 1]);
  await pass(20_000);
  assert.deepEqual([authorized(), made.length, sockets.length], [made, 2, 1]);
  sockets[0].onclose({ code: 1008, reason: "token with fewer rights" });
  while (!sockets[1]?.methods.includes("subscribe")) await pass(100);
  assert.deepEqual([authorized(), made.length, asked], [[...made, made[1]], 2, []]);
  await pass(100);
  sockets[1].receive({ params: { subscription: 1, type: "session", data: session("a") } });
  assert.equal((await first).value.data.code, "a");
  await events.return();
});
