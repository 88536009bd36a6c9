/* Nonsense in what a server sends: it concerns one item only. */

import assert from "node:assert/strict";
import { afterEach, beforeEach, test } from "node:test";
import { json } from "../../../tornado_signal/web/client/http.js";
import { SignalClient } from "../../../tornado_signal/web/client/signal-client.js";
import { Socket, sockets, useSocket } from "./fake_socket.js";

const ODD = { toString: 0, valueOf: 0 };
const SESSION = { code: "c", info: "i", offer: "o", offerCandidates: ["x"], createdAt: 1, expiresAt: 2 };

let client;
beforeEach((context) => {
  useSocket();
  client = new SignalClient(`https://${context.name.replaceAll(" ", "-")}.example`);
});

afterEach(() => sockets[0]?.onclose?.({ code: 1000, reason: "" }));

test("events of any form end neither the WebSocket nor the subscription", async () => {
  Socket.replies = { subscribe: { result: { subscription: 1 } } };
  const events = client.events("lobby");
  const first = events.next();
  while (!sockets.length) await new Promise((resolve) => setTimeout(resolve));
  const [socket] = sockets;
  await new Promise((resolve) => setTimeout(resolve, 20));
  const odd = [null, true, 0, 1e300, "", "text", [], [[]], {}, ODD];
  for (const each of odd) {
    socket.receive(each === "" ? "0" : { params: each });
    socket.receive(JSON.stringify(each));
    socket.receive({ id: each, result: each, error: each });
    for (const name of ["subscription", "cursor", "type", "data", "retry", "id", "size"]) {
      socket.receive({ params: { subscription: 1, type: "x", data: {}, [name]: each } });
      socket.receive({ params: { subscription: 1, type: "session", data: null, [name]: each } });
    }
    for (const name of ["code", "info", "offer", "createdAt", "expiresAt"]) {
      if (typeof each === typeof SESSION[name]) continue;
      socket.receive({ params: { subscription: 1, type: "session", data: { ...SESSION, [name]: each } } });
    }
    for (const code of typeof each === "string" ? [] : [each])
      socket.receive({ params: { subscription: 1, type: "gone", data: { code } } });
  }
  const text = ",".repeat(300_000); // the marks of values in the text of a stranger are not values
  socket.receive({
    params: { subscription: 1, type: "session", data: { ...SESSION, offer: text, offerCandidates: [ODD, "x", 5] } },
  });
  const { value } = await first;
  assert.deepEqual(value.data, { ...SESSION, offer: text, offerCandidates: ["x"] });
  assert.deepEqual([sockets.length, socket.closed], [1, false]);
  await events.return();
});

test("items of a result have the declared types and a wrong result fails its call only", async () => {
  const text = '","\\",'.repeat(80_000);
  Socket.replies = {
    sessions: { result: { sessions: [null, ODD, [], "x", { ...SESSION, code: ODD }, SESSION], cursor: ODD } },
    poll: { result: { answer: ODD, answerCandidates: [1, null, "x", ODD, text], cursor: "1" } },
    topics: { result: { topics: [ODD, { topic: "a", count: 1 }], pagination: {} } },
    version: { error: { code: 429, message: "busy", data: { retryAfter: ODD } } },
    health: { error: { code: ODD, message: ODD } },
    nearby: { result: ODD },
  };
  assert.deepEqual((await client.sessions("lobby")).sessions, [SESSION]);
  assert.deepEqual(await client.poll("c", "offerer"), { answerCandidates: ["x", text], cursor: "1" });
  await assert.rejects(client.version(), { code: "server-busy", retryAfterMs: undefined });
  for (const name of ["topics", "health", "nearby"]) await assert.rejects(client[name](), { code: "not-a-server" });
  assert.deepEqual([sockets.length, sockets[0].closed], [1, false]);
});

// Two sessions are known. The reader returns after the memory of removals, and the new listing breaks off once.
const REPLACED = [
  [undefined, ["session", "a"], ["session", "b"], [""]],
  ["3", ["reset"], ["session", "c"]],
  [undefined, ["session", "a"], ["session", "c"], ["session", "d"], [""]],
  ["9", ["gone", "a"]],
];

test("a listing after a reset replaces what was known", async (context) => {
  Socket.replies = { subscribe: { result: { subscription: 1 } } };
  const asked = [];
  const { send } = Socket.prototype;
  context.mock.method(Socket.prototype, "send", function (text) {
    const { method, params } = JSON.parse(text);
    send.call(this, text);
    if (method !== "subscribe") return;
    let cursor = REPLACED.slice(0, asked.length).reduce((sum, [, ...events]) => sum + events.length, 0);
    const [, ...events] = REPLACED[asked.length] ?? [];
    asked.push(params.since);
    setTimeout(() => {
      for (const [type, code] of events) {
        cursor += 1;
        const data = { session: { ...SESSION, code }, gone: { code } }[type] ?? {};
        this.receive({ params: { subscription: 1, cursor: `${cursor}`, type, data: type ? data : null } });
      }
      setTimeout(() => this.onclose?.({ code: 1006, reason: "" }), 20);
    }, 20);
  });
  const reported = [];
  for await (const { type, data } of client.events("lobby")) {
    reported.push([type, data.code]);
    if (`${type} ${data.code}` === "gone a") break;
  }
  const listed = [..."abcacd"].map((code) => ["session", code]);
  assert.deepEqual(reported, [...listed, ["gone", "b"], ["gone", "a"]]);
  assert.deepEqual(
    asked,
    REPLACED.map(([since]) => since),
  );
});

test("too many values are still refused", async () => {
  const result = { sessions: Array(260_000).fill(0) };
  Socket.replies = { sessions: { result } };
  await assert.rejects(client.sessions("lobby", { limit: 1 }), { code: "not-a-server" });
});

test("values are counted over the pieces of a response", async () => {
  const respond = (text, size) => {
    const bytes = new TextEncoder().encode(text);
    const pieces = Array.from({ length: Math.ceil(bytes.length / size) }, (_, at) =>
      bytes.subarray(at * size, (at + 1) * size),
    );
    return json({ body: ReadableStream.from(pieces), url: "http://127.0.0.1/" });
  };
  const value = { text: `${",[{".repeat(90_000)}\\"é` };
  assert.deepEqual(await respond(JSON.stringify(value), 3), value);
  const code = "not-a-server";
  await assert.rejects(respond(JSON.stringify({ list: Array(250_001).fill(0) }), 7), { code });
  await assert.rejects(respond(`{"list": [${"[],".repeat(125_001)}0]}`, 1000), { code });
});
