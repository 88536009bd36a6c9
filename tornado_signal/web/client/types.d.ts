/* Types that the modules share; no browser loads this file. */

import type { SignalClient as Api, IceServer, PeerOptions, Side } from "../client.d.ts";
import type { Contact } from "./peer.js";
import type { SignalClient } from "./signal-client.js";
import type { Deadline } from "./timing.js";

export type * from "../client.d.ts";

/** The fields of JSON, in which anything can be. */
export type Fields = Record<string, unknown>;

/** An event of a subscription, by polls or over a WebSocket. */
export interface RawEvent {
  type?: string;
  data?: unknown;
  id?: string;
  size?: number; // the number of characters of the message, if it came over a WebSocket
}

type Calls = Omit<Api, "url" | "open" | "events" | "leave" | "candidate" | "candidates" | "rooms" | "report">;

/** The result of each method of the API. */
export type Results = { [Method in keyof Calls]: Awaited<ReturnType<Calls[Method]>> } & {
  report: object;
  subscribe: { subscription: number };
  authorize: { expiresAt: number };
};

/** The callbacks for the response to a request over a WebSocket. */
export interface Call {
  resolve?: (result: never) => void;
  reject?: (reason: Error) => void;
  stream?: ReadableStreamDefaultController<RawEvent>;
  /** The side and the secret of an offer that is withdrawn when its code arrives: its caller no longer waits. */
  abandoned?: Fields;
}

/** A JSON-RPC response or notification. */
export interface Frame {
  id: number;
  result: Results["subscribe"] & Results["offer"];
  error?: { code: number; message: string; data?: { retryAfter?: number } };
  params?: { subscription: number; cursor?: string; type: string; data: unknown };
}

/** The scope of a stream: a topic, or one side of a session. It begins after the event with the id `since`. */
export type StreamFields = { topic?: string; code?: string; side?: Side; secret?: string; since?: string };

/** The two ways to a server. Results are unchecked. */
export interface Transport {
  call(method: keyof Results, fields: Fields & { topic?: string; wait?: number }, deadline: Deadline): Promise<unknown>;
  /** Return the events of a topic or a session; first an empty one. `codes` are those of the sessions so far. */
  subscribe(fields: StreamFields, deadline: Deadline, codes: Set<string>): AsyncGenerator<RawEvent, void, void>;
}

export interface IceServers {
  iceServers: IceServer[];
  until: number; // the time at which to request them again, in milliseconds of `performance.now()`
  /** Report an attempt and its duration, where the server wants that. */
  report: (connection: RTCPeerConnection, ms: number, connected: boolean) => void;
}

/** A message of a negotiation. */
export interface Mail {
  description?: Description | null;
  of?: number | null;
  candidates?: RTCIceCandidateInit[] | null;
  alive?: "ask" | "yes"; // a request for a sign of life, or the response to one
  closed?: boolean | null; // whether the sender does not have the connection, which the recipient has asked about
}

export type Description = RTCSessionDescriptionInit & { joins?: number | null; info?: string | null };

/** The typed records of `read`, by their kind. A field that can be missing can also be null. */
export interface Records {
  description: Description;
  candidate: RTCIceCandidateInit;
  negotiation: Mail;
  /** The text of a beacon. */
  beacon: {
    v: number;
    id: string;
    at: number;
    now: number; // when it was made, by the server's clock as its author knows it
    since?: number | null;
    info?: string | null;
    me?: string;
  };
  mail: Mail & { from: string; info: string; code: string; connection?: string | null; me?: string };
  parts: { size: number; text: boolean }; // the header of a message in parts
  file: { name: string; type: string; size: number };
  transfer: { accept?: boolean | null; received?: boolean | null; cancel?: string | null }; // a message about a file
}

/** A message of the other side, and its size in bytes, or in characters for a text. */
export type Received = { data: unknown; size: number };

/** The transport of the messages of a negotiation. */
export interface Way {
  signal: AbortSignal;
  leads: boolean;
  begins?: boolean; // whether this side may make the first offer
  readonly direct: boolean;
  readonly listed?: unknown;
  candidatesOnly?: boolean; // whether `send` takes no descriptions
  renew?: () => void; // set the ICE servers for an ICE restart
  send?: (mail: Mail) => Promise<boolean>;
  refuse?: () => void; // called with an offer that the connection cannot use
}

export type LinkOptions = PeerOptions & { channel?: RTCDataChannelInit; pair?: boolean };

/** The fields of an event in addition to those of the DOM. */
export type EventFields<Type extends Event> = Omit<Type, keyof Event>;

/** A listed beacon of a member of a room. */
export interface Beacon {
  code: string;
  info: string;
  me?: string;
  at: number; // when the member made it, by its own clock
  since: number; // when the member entered, by the server's clock; 0 in a first beacon
  createdAt: number;
  seenMs: number; // when this page has seen it, by `performance.now`
  asked?: boolean; // whether it was asked for a sign of life, has given one, or has not given one in time
  alive?: boolean;
  silent?: boolean;
  repliedMs?: number; // when this page has given it a sign of life, by `performance.now`
}

/** A beacon of this page, with the mail to it. */
export interface Mailbox {
  client: SignalClient;
  code: string;
  offer: string;
  keep: () => Promise<void>;
  deadline: Deadline; // ends when it is withdrawn
  nonces: Set<string>; // the nonces of the mail received so far
  /** The number of texts received since this page last tested whether the server takes more. -1 before its own one. */
  untested: number;
  full: () => void; // called when it must be replaced
}

/** A member of a room, whether connected or not. */
export interface Member {
  id: string;
  name?: string;
  info: string;
  code?: string; // the code of its beacon; undefined while the server does not list one
  entry?: number; // when it entered, by the server's clock; undefined if only its mail is known
  beacon?: Beacon; // the beacon that is used, and all that are listed, by their codes
  beacons: Map<string, Beacon>;
  connection?: unknown; // the current attempt
  peer?: Contact;
  open?: Contact; // the open connection, which stays until another one is open
  tries: number;
  resting?: boolean; // whether the pause after an attempt is not over
  waiting?: Member[]; // its list in the queue, and the place in it
  place?: number;
}

/** The shape of a JSON value: a type's name, a list of one shape, or fields. Fields with `?` are optional. */
export type Shape = string | Shape[] | { [name: string]: Shape };
