/* Types that the modules share; no browser loads this file. */

import type { SignalClient as Api, IceServer, Peer, PeerOptions, RoomEvents, RoomOptions, Side } from "../client.d.ts";
import type { Contact } from "./peer.js";
import type { Roster } from "./roster.js";
import type { SignalClient } from "./signal-client.js";
import type { Deadline } from "./timing.js";

/** The fields of JSON, in which anything can be. */
export type Fields = Record<string, unknown>;

/** An event of a subscription, by polls or over a WebSocket. */
export interface RawEvent {
  type?: string;
  data?: unknown;
  id?: string;
  /** The number of characters of the message, if it came over a WebSocket. */
  size?: number;
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
  /** The secret of an offer that is withdrawn when its code arrives, because its caller no longer waits. */
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
export interface StreamFields {
  topic?: string;
  code?: string;
  side?: Side;
  secret?: string;
  since?: string;
}

/** The two ways to a server. Results are unchecked. */
export interface Transport {
  call(method: keyof Results, fields: Fields & { topic?: string; wait?: number }, deadline: Deadline): Promise<unknown>;
  /** Return the events of a topic or a session; first an empty one. `codes` are those of the sessions so far. */
  subscribe(fields: StreamFields, deadline: Deadline, codes: Set<string>): AsyncGenerator<RawEvent, void, void>;
}

export interface IceServers {
  iceServers: IceServer[];
  /** The time at which to request them again, in milliseconds of `performance.now()`. */
  until: number;
  /** Report an attempt and its duration, where the server wants that. */
  report: (connection: RTCPeerConnection, ms: number, connected: boolean) => void;
}

/** A message of a negotiation. */
export interface Mail {
  description?: Description | null;
  of?: number | null;
  candidates?: RTCIceCandidateInit[] | null;
  /** A request for a sign of life, or the response to one. */
  alive?: "ask" | "yes";
  /** Whether the sender does not have the connection, which the recipient has asked about. */
  closed?: boolean | null;
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
    /** When it was made, by the server's clock as its author knows it. */
    now: number;
    since?: number | null;
    info?: string | null;
    me?: string;
  };
  mail: Mail & { from: string; info: string; code: string; connection?: string | null; me?: string };
  /** The header of a message in parts. */
  parts: { size: number; text: boolean };
  file: { name: string; type: string; size: number };
  /** A message about a file. */
  transfer: { accept?: boolean | null; received?: boolean | null; cancel?: string | null };
}

/** The transport of the messages of a negotiation. */
export interface Way {
  signal: AbortSignal;
  leads: boolean;
  /** Whether this side may make the first offer. */
  begins?: boolean;
  readonly direct: boolean;
  readonly listed?: unknown;
  /** Whether `send` takes no descriptions. */
  candidatesOnly?: boolean;
  /** Set the ICE servers for an ICE restart. */
  renew?: () => void;
  send?: (mail: Mail) => Promise<boolean>;
  refused?: () => void;
}

export type LinkOptions = PeerOptions & { channel?: RTCDataChannelInit; pair?: boolean };

/** The fields of an event in addition to those of the DOM. */
export type EventFields<Type extends Event> = Omit<Type, keyof Event>;

/** A listed beacon of a member of a room. */
export interface Beacon {
  code: string;
  info: string;
  me?: string;
  /** When the member made it, by its own clock. */
  at: number;
  /** When the member entered, by the server's clock; 0 in a first beacon. */
  since: number;
  createdAt: number;
  /** When this page has seen it, by `performance.now`. */
  seenMs: number;
  /** Whether it was asked for a sign of life, has given one, or has not given one in time. */
  asked?: boolean;
  alive?: boolean;
  silent?: boolean;
  /** When this page has given it a sign of life, by `performance.now`. */
  repliedMs?: number;
}

/** A beacon of this page, with the mail to it. */
export interface Mailbox {
  client: SignalClient;
  code: string;
  offer: string;
  keep: () => Promise<void>;
  /** Ends when it is withdrawn. */
  deadline: Deadline;
  /** The nonces of the mail received so far. */
  nonces: Set<string>;
  /** The number of texts received since this page last tested whether the server takes more. -1 before its own one. */
  untested: number;
  /** Called when it must be replaced. */
  full: () => void;
}

/** A member of a room, whether connected or not. */
export interface Member {
  id: string;
  name?: string;
  info: string;
  /** The code of its beacon; undefined while the server does not list one. */
  code?: string;
  /** When it entered, by the server's clock; undefined if only its mail is known. */
  entry?: number;
  /** The beacon that is used, and all that are listed, by their codes. */
  beacon?: Beacon;
  beacons: Map<string, Beacon>;
  /** The current attempt. */
  connection?: unknown;
  peer?: Contact;
  /** The open connection, which stays until another one is open. */
  open?: Contact;
  tries: number;
  /** Whether the pause after an attempt is not over. */
  resting?: boolean;
  /** Its list in the queue, and the place in it. */
  waiting?: Member[];
  place?: number;
}

/** The interface of a room for its mail and its attempts. */
export interface RoomSide {
  target: EventTarget & { id?: string; dropped: number; peers: Map<string, Peer<unknown>> };
  roster: Roster;
  options: RoomOptions;
  /** Fires when the page leaves. */
  signal: AbortSignal;
  streams: Set<MediaStream>;
  /** Those of `room.channel`, by their names. */
  channels: Map<string, EventTarget>;
  ice: () => IceServers;
  /** Called with each new beacon. */
  published: () => void;
  /** Called when mail to a beacon can arrive, and when the time of entry is known. */
  reading: () => void;
  /** Returns whether the mail counts for the limit of a beacon. */
  take: (mail: Records["mail"]) => boolean;
  mayConnect: (member: Member) => boolean;
  mail: (id: string, code: string, fields: Fields, signal?: AbortSignal) => Promise<unknown>;
  verify: (peer: Peer<unknown>) => ReturnType<Peer["verification"]>;
  tell: TellRoom;
  report: (error: unknown) => void;
  /** Close the room because of an error. */
  fail: (error: unknown) => void;
  /** Use the best beacon of a member. */
  use: (member: Member) => void;
  /** Remove a member. */
  left: (member: Member) => void;
  /** Whether the page has left. Fails if something else has closed the room. */
  ended: () => boolean;
}

export type TellRoom = <Name extends keyof RoomEvents>(name: Name, fields?: EventFields<RoomEvents[Name]>) => void;

/** The shape of a JSON value: a type's name, a list of one shape, or fields. Fields with `?` are optional. */
export type Shape = string | Shape[] | { [name: string]: Shape };
