// A client of bittorrent-tracker. It sends its name to its peer, and prints what the peer sends.

import { createHash, randomBytes } from "node:crypto";
import { once } from "node:events";
import wrtc from "@roamhq/wrtc";
import Client from "bittorrent-tracker";

const [url, name] = process.argv.slice(2);
const infoHash = createHash("sha1").update("Node.js").digest("hex");
const options = { announce: [url], port: 6881, wrtc, rtcConfig: { iceServers: [] } };
const client = new Client({ infoHash, peerId: randomBytes(20), ...options });
for (const kind of ["error", "warning"]) {
  client.on(kind, (error) => {
    throw error;
  });
}
const met = once(client, "peer");
client.start({ left: 1 });
const [peer] = await met;
const heard = once(peer, "data");
if (!peer.connected) await once(peer, "connect");
peer.send(name);
console.log(Buffer.from((await heard)[0]).toString());
client.scrape();
const [{ incomplete }] = await once(client, "scrape");
console.log(incomplete);
