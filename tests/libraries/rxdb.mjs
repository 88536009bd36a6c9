// A database of RxDB that replicates with its peers. It inserts its name, and prints what it gets from others.

import { WebSocket } from "ws";
import { replicate } from "./rxdb-database.mjs";
import { RTCIceCandidate, RTCPeerConnection, RTCSessionDescription } from "./wrtc.mjs";

const [url, name, library = "rxdb"] = process.argv.slice(2);
const [core, webrtc, memory] = await Promise.all(
  ["", "/plugins/replication-webrtc", "/plugins/storage-memory"].map((path) => import(library + path)),
);
const wrtc = { RTCPeerConnection, RTCSessionDescription, RTCIceCandidate };
const options = { wrtc, webSocketConstructor: WebSocket, config: { iceServers: [] } };
await replicate({ ...core, ...webrtc, ...memory }, url, name, options, (other) => console.log(other));
