// A member of a room outside a browser: it returns each message to its sender.

import { room } from "tornado-signal";
import { RTCPeerConnection } from "./webrtc.js";

const [url = "http://127.0.0.1:3000", origin = "http://localhost:8000"] = process.argv.slice(2);
const lobby = room("lobby", { url, origin, info: "Echo", RTCPeerConnection });

lobby.addEventListener("join", ({ peer }) => console.log(`${peer.info} is here`));
lobby.addEventListener("leave", ({ peer }) => console.log(`${peer.info} has left`));
lobby.addEventListener("message", ({ peer, data }) => lobby.send(data, peer));
lobby.addEventListener("error", ({ error }) => console.error(error.message));

process.once("SIGINT", () => lobby.leave());
