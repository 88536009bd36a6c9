// A database of RxDB that replicates with its peers. It inserts its name, and prints what it gets from others.

import { RTCIceCandidate, RTCPeerConnection, RTCSessionDescription } from "./wrtc.mjs";
import { createRxDatabase } from "rxdb";
import {
  getConnectionHandlerNostr,
  getConnectionHandlerSimplePeer,
  replicateWebRTC,
} from "rxdb/plugins/replication-webrtc";
import { getRxStorageMemory } from "rxdb/plugins/storage-memory";
import { WebSocket } from "ws";

const [url, name] = process.argv.slice(2);
const wrtc = { RTCPeerConnection, RTCSessionDescription, RTCIceCandidate };
const options = { wrtc, webSocketConstructor: WebSocket, config: { iceServers: [] } };
const connectionHandlerCreator = url.endsWith("/nostr")
  ? getConnectionHandlerNostr({ relays: [url], ...options })
  : getConnectionHandlerSimplePeer({ signalingServerUrl: url, ...options });
const database = await createRxDatabase({ name, storage: getRxStorageMemory(), multiInstance: false });
const schema = {
  version: 0,
  primaryKey: "id",
  type: "object",
  properties: { id: { type: "string", maxLength: 100 } },
};
const { names } = await database.addCollections({ names: { schema } });
names.insert$.subscribe(({ documentId }) => documentId !== name && console.log(documentId));
const replication = await replicateWebRTC({
  collection: names,
  topic: "replicated",
  connectionHandlerCreator,
  pull: {},
  push: {},
});
replication.error$.subscribe((error) => console.error(error));
await names.insert({ id: name });
