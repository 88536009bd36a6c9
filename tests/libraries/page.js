// The original clients of other libraries, unmodified, as the functions of a page.

import { createTopicStrategy, toJson } from "@trystero-p2p/core";
import { joinRoom as joinTorrentRoom } from "@trystero-p2p/torrent";
import P2PT from "p2pt";
import { Peer } from "peerjs";
import { joinRoom as joinNostrRoom } from "trystero";
import WebTorrent from "webtorrent/dist/webtorrent.min.js";
import { WebrtcProvider } from "y-webrtc";
import * as Y from "yjs";

const rtcConfig = { iceServers: [] };
const heard = (globalThis.heard = []);

const url = (server, path) => server.replace("http", "ws") + path;
const once = (emitter, name) => new Promise((resolve) => emitter.once(name, resolve));
const kinds = (error) => heard.push(`error ${error.type}`);

// PeerJS

function listen(peer) {
  peer.on("error", kinds);
  peer.on("disconnected", () => heard.push("disconnected"));
  peer.on("connection", (connection) => {
    connection.on("data", (data) => {
      heard.push(data);
      if (data !== "answer") connection.send("answer");
    });
  });
}

globalThis.openPeer = async (server, id, options = {}) => {
  const { hostname, port, pathname, protocol } = new URL(server);
  const secure = protocol === "https:";
  const peer = new Peer(id, { host: hostname, port, path: pathname, secure, config: rtcConfig, ...options });
  globalThis.peer = peer;
  listen(peer);
  return await Promise.race([once(peer, "open"), once(peer, "error").then(({ type }) => type)]);
};
globalThis.connectTo = async (id, message) => {
  const connection = peer.connect(id, { reliable: true });
  const opened = once(connection, "open");
  const failed = once(peer, "error").then(({ type }) => Promise.reject(new Error(type)));
  await Promise.race([opened, failed]);
  connection.on("data", (data) => heard.push(data));
  await connection.peerConnection.getStats(); // Chromium can lose what is sent before
  connection.send(message);
};

// y-webrtc

// Resolves when the room has the page's announcement. Two pages that announce themselves at the same time can miss each
// other, with every server: y-webrtc does not always resolve two simultaneous offers.
globalThis.edit = async (server, room, password) => {
  const document = (globalThis.document_ = new Y.Doc());
  globalThis.provider = new WebrtcProvider(room, document, {
    signaling: [url(server, "y-webrtc")],
    password,
    filterBcConns: false,
    peerOpts: { config: rtcConfig },
  });
  const [connection] = provider.signalingConns;
  await new Promise((resolve) => connection.on("message", ({ type }) => type === "publish" && resolve()));
};
globalThis.write = (text) => document_.getText("text").insert(0, text);
globalThis.read = () => document_.getText("text").toString();
globalThis.editors = () => provider.room?.webrtcConns.size ?? 0;

// WebTorrent and P2PT

globalThis.seed = (server, name, text) =>
  new Promise((resolve) => {
    const client = (globalThis.torrents = new WebTorrent({ tracker: { rtcConfig }, dht: false, lsd: false }));
    const options = { announce: [url(server, "tracker")], name };
    client.seed(new File([text], name), options, ({ magnetURI }) => resolve(magnetURI));
  });
globalThis.download = async (magnet) => {
  const client = (globalThis.torrents = new WebTorrent({ tracker: { rtcConfig }, dht: false, lsd: false }));
  const torrent = client.add(magnet);
  await once(torrent, "done");
  return await (await torrent.files[0].blob()).text();
};
globalThis.meetByP2PT = (server, name, message) => {
  const p2pt = (globalThis.p2pt = new P2PT([url(server, "announce")], name));
  p2pt.on("peerconnect", (other) => p2pt.send(other, message));
  p2pt.on("msg", (_, data) => heard.push(data));
  p2pt.start();
};

// trystero

const joinRelayRoom = createTopicStrategy({
  init: ({ relayConfig }) =>
    new Promise((resolve, reject) => {
      const socket = new WebSocket(relayConfig.urls[0]);
      socket.addEventListener("open", () => resolve(socket), { once: true });
      socket.addEventListener("error", reject, { once: true });
    }),
  subscribeTopic: (socket, topic, onMessage) => {
    const receive = ({ data }) => {
      const message = JSON.parse(data);
      if (message.topic === topic) onMessage(topic, message.payload);
    };
    socket.addEventListener("message", receive);
    socket.send(toJson({ type: "subscribe", topic }));
    return () => {
      socket.send(toJson({ type: "unsubscribe", topic }));
      socket.removeEventListener("message", receive);
    };
  },
  publishTopic: (socket, topic, payload) => socket.send(toJson({ type: "publish", topic, payload })),
});

globalThis.meetByTrystero = (server, strategy, name, message) => {
  const [join, path] = {
    nostr: [joinNostrRoom, "nostr"],
    torrent: [joinTorrentRoom, "tracker"],
    "ws-relay": [joinRelayRoom, "y-webrtc"],
  }[strategy];
  const urls = [url(server, path)];
  const room = (globalThis.room = join({ appId: "test", relayConfig: { urls }, rtcConfig }, name));
  const action = room.makeAction("chat");
  action.onMessage = (data) => heard.push(data);
  room.onPeerJoin = (peerId) => action.send(message, { target: peerId });
};
globalThis.ready = true;
