// A peer in Node.js with werift: node peer.mjs offer|answer SERVER ORIGIN TOPIC

import { RTCPeerConnection } from "werift";

const [role, server, origin, topic] = process.argv.slice(2);

async function call(path, body) {
  const method = body ? "POST" : "GET";
  const response = await fetch(server + path, { method, headers: { origin }, body: JSON.stringify(body) });
  const result = await response.json();
  if (!response.ok) throw new Error(result.error);
  return result;
}

/** Set the own description, and return it as JSON with all candidates. */
async function describe(description) {
  await peer.setLocalDescription(description);
  if (peer.iceGatheringState !== "complete") {
    await peer.iceGatheringStateChange.watch((state) => state === "complete");
  }
  return JSON.stringify(peer.localDescription);
}

const { iceServers } = await call("/ice-servers");
const single = iceServers.flatMap(({ urls, ...more }) => urls.map((url) => ({ urls: url, ...more })));
const peer = new RTCPeerConnection({ iceServers: single });
if (role === "offer") {
  const channel = peer.createDataChannel("");
  channel.onopen = () => channel.send("hello");
  channel.onmessage = ({ data }) => console.log(data);
  const { code } = await call(`/${topic}/offer`, { info: "Node.js", offer: await describe(await peer.createOffer()) });
  let answer = null;
  while (!answer) ({ answer } = await call("/poll", { code, side: "offerer", wait: 45 }));
  await peer.setRemoteDescription(JSON.parse(answer));
} else {
  peer.ondatachannel = ({ channel }) => (channel.onmessage = ({ data }) => channel.send(data));
  let sessions = [];
  while (!sessions.length) ({ sessions } = await call(`/${topic}/sessions?limit=1&wait=45`));
  await peer.setRemoteDescription(JSON.parse(sessions[0].offer));
  const answer = await describe(await peer.createAnswer());
  await call("/answer", { code: sessions[0].code, side: "answerer", answer });
}
