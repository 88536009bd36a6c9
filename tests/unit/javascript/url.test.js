import assert from "node:assert/strict";
import { test } from "node:test";
import { pair } from "../../../tornado_signal/web/client/connect.js";
import { room } from "../../../tornado_signal/web/client/room.js";
import { SignalClient } from "../../../tornado_signal/web/client/signal-client.js";

// As in a bundle, the module does not come from a server here.
test("a bundle without `url` is an error that says so", () => {
  const expected = { code: "invalid-url", message: /^A bundle does not know its server: set `url`/ };
  assert.throws(() => new SignalClient(), expected);
  assert.throws(() => room("lobby"), expected);
});

test("mistakes in the options are errors at the call", async () => {
  const options = { url: "https://server", RTCPeerConnection: class {} };
  const fails = (code, call) => assert.throws(call, { code });
  fails("no-webrtc", () => room("lobby", { url: "https://server" }));
  await assert.rejects(pair("lobby", { url: "https://server" }), { code: "no-webrtc" });
  for (const name of [undefined, "", 7, "x".repeat(252), "/".repeat(63)]) {
    fails("topic-invalid", () => room(name, options));
  }
  await assert.rejects(pair(undefined, options), { code: "topic-invalid" });
  for (const info of [7, null, {}, "", "x".repeat(1025)]) {
    fails("info-invalid", () => room("lobby", { ...options, info }));
  }
  for (const origin of ["", "https://a.example/", "https://a.example/path", "a.example"]) {
    fails("invalid-origin", () => new SignalClient("https://server", { origin }));
  }
  fails("invalid-url", () => new SignalClient("wss://server"));
});

test("a topic that HTTP cannot carry is an error of each call", async () => {
  const client = new SignalClient("https://server", { origin: "https://app.example" });
  for (const topic of [".", "..", "\ud83d", "a\udc00b"]) {
    const calls = [client.sessions(topic), client.offer(topic, { info: "i", offer: "o" }), client.events(topic).next()];
    for (const call of calls) await assert.rejects(call, { code: "topic-invalid" });
  }
});

test("an empty name is an error", async () => {
  const lobby = room("lobby", { url: "https://server", me: "", RTCPeerConnection: class {} });
  const { error } = await new Promise((resolve) => lobby.addEventListener("error", resolve));
  assert.equal(error.code, "name-invalid");
});
