/* Reports of connections (docs/turn.md#reports-of-connections). Loaded where a server wants them. */

/** @import { SignalClient } from "./signal-client.js" */

const STEP_MS = 100; // of the time in a report

/**
 * Report an attempt to connect two peers. A report that is refused or lost is not repeated.
 * @param {SignalClient} client @param {RTCPeerConnection} connection @param {number} ms @param {boolean} connected
 */
export async function report(client, connection, ms, connected) {
  const none = () => new Map();
  const stats = (connected && (await connection.getStats().catch(none))) || none();
  const all = [...stats.values()];
  const { selectedCandidatePairId } = all.find(({ type }) => type === "transport") ?? {};
  const chosen = all.find(({ id, selected }) => id === selectedCandidatePairId || selected); // as Firefox marks it
  const [local, remote] = [chosen?.localCandidateId, chosen?.remoteCandidateId].map((id) => stats.get(id));
  await client.report({
    outcome: connected ? "connected" : "failed",
    local: local?.candidateType,
    remote: remote?.candidateType,
    transport: local?.relayProtocol ?? local?.protocol,
    ms: STEP_MS * Math.ceil(ms / STEP_MS),
  });
}
