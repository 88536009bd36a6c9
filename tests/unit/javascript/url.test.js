import assert from "node:assert/strict";
import { test } from "node:test";
import { checkFile } from "../../../tornado_signal/web/client/files.js";
import { join, nearby, pair, publish, room, SignalClient } from "../../../tornado_signal/web/index.js";

// As in a bundle, the module does not come from a server here.
test("a bundle without `url` is an error that says so", () => {
  const expected = { code: "invalid-url", message: /^The server is not known here: set `url`/ };
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
  for (const url of ["127.0.0.1:3000", "localhost:3000", "signal.example", "wss://server"]) {
    const expected = { code: "invalid-url", message: new RegExp(`"${url}".*http://`) };
    assert.throws(() => new SignalClient(url), expected);
    assert.throws(() => room("lobby", { ...options, url }), expected);
    await assert.rejects(pair("lobby", { ...options, url }), expected);
  }
  for (const url of ["/", "/signal", "../", ".", "", "HTTPS://signal.example"]) {
    assert.equal(new SignalClient(url).url, url.replace(/\/$/, ""));
  }
  const turn = { urls: ["stun:a", "TURNS:b"], username: "u" };
  const wrong = ["stun:a", {}, [null], [{ url: "stun:a" }], [{ urls: [] }], [{ urls: ["stun:a", "b"] }], [turn]];
  for (const iceServers of wrong) {
    const expected = { code: "option-invalid", message: /`rtc.iceServers`/ };
    assert.throws(() => room("lobby", { ...options, rtc: { iceServers } }), expected);
  }
  room("lobby", { ...options, rtc: { iceServers: [{ ...turn, credential: "c" }] } }).leave();
});

test("unknown options and those of another type are errors that name them", async () => {
  const options = { url: "https://server", RTCPeerConnection: class {} };
  const client = new SignalClient("https://server", { origin: "https://app.example" });
  const types = { socket: 1, token: {}, signal: "stop", rtc: [1].join, prepare: "", channel: true, secret: 7 };
  const calls = [
    [room, { ...types, pasword: "x", onstep() {}, wait: false, constructor: 1, RTCPeerConnection: {} }],
    [publish, { socket: null, onstep: {}, me: "a", password: "x" }],
    [join, { wait: "no", choose: [], channel: {}, rtc: "stun:a" }],
    [pair, { signal: 5, onstep: 1, choose() {}, max: 2 }],
    [(_, given) => nearby(given), { topic: "a", channel: null }],
    [(_, { url, RTCPeerConnection, ...given }) => new SignalClient(url, given), { socket: "no", token: 5, orgin: "a" }],
    [(topic, { url, RTCPeerConnection, ...given }) => client.sessions(topic, given), { timeout: 5, signal: 5 }],
    [(topic, { url, RTCPeerConnection, ...given }) => client.events(topic, given).next(), { since: "a", signal: true }],
    [(code, { url, RTCPeerConnection, ...given }) => client.leave(code, "offerer", given), { sekret: "a" }],
    [(_, { url, RTCPeerConnection, ...given }) => checkFile(new Blob(), given), { onProgress() {}, onprogress: 1 }],
  ];
  for (const [call, wrong] of calls) {
    for (const [name, value] of Object.entries(wrong)) {
      const expected = { code: "option-invalid", message: new RegExp(`\`${name}\``) };
      await assert.rejects(async () => call("lobby", { ...options, [name]: value }), expected, name);
    }
  }
  for (const file of ["text", null, undefined, {}, Promise.resolve(new Blob())]) {
    assert.throws(() => checkFile(file, {}), { code: "argument-invalid", message: /`sendFile` takes/ });
  }
});

test("a stream and a recipient of the wrong kind are errors at the call", async () => {
  const lobby = room("lobby", { url: "https://server", RTCPeerConnection: class {}, signal: AbortSignal.abort() });
  for (const stream of [null, undefined, {}, Promise.resolve({ getTracks() {} })]) {
    assert.throws(() => lobby.addStream(stream), { code: "argument-invalid", message: /`addStream` takes/ });
  }
  for (const to of ["absent", null, {}, { id: "absent" }, 7]) {
    for (const sent of [lobby.send("text", to), lobby.channel("cursor").send("text", to)])
      await assert.rejects(sent, { code: "peer-left", message: /`to`/ });
    await assert.rejects(lobby.sendFile(new Blob(), { to }), { code: "peer-left", message: /`to`/ });
  }
  for (const name of ["", undefined, 7]) assert.throws(() => lobby.channel(name), { code: "argument-invalid" });
  for (const data of [undefined, () => {}, 1n]) await assert.rejects(lobby.send(data), { code: "invalid-message" });
  await lobby.send("text"); // to everybody in an empty room
  await assert.rejects(lobby.sendFile("text"), { code: "argument-invalid" });
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

test("one signal ends any number of rooms, publications and calls", async () => {
  const stop = new AbortController();
  const { signal } = stop;
  const client = new SignalClient("https://server", { origin: "https://app.example" });
  const options = { url: "https://server", RTCPeerConnection: class {}, signal };
  const each = Array.from({ length: 11 });
  const calls = each.flatMap(() => [client.health({ signal }), pair("lobby", options)]);
  const targets = each.flatMap(() => [room("lobby", options), publish("lobby", options)]);
  const closed = targets.map((target) => new Promise((resolve) => target.addEventListener("close", resolve)));
  stop.abort();
  await Promise.all(calls.map((call) => assert.rejects(call, { name: "AbortError" })));
  await Promise.all(closed);
  // One that is aborted before lets nothing begin.
  const late = [room("lobby", options), publish("lobby", options)];
  await Promise.all(late.map((target) => new Promise((resolve) => target.addEventListener("close", resolve))));
  await assert.rejects(pair("lobby", options), { name: "AbortError" });
});
