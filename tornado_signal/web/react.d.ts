import type { Peer, Room, RoomEvents, RoomOptions } from "./client.js";

export interface UseRoomOptions extends Omit<RoomOptions, "signal"> {
  /** Called for each message. The function may be another one in each rendering. */
  onmessage?: (event: RoomEvents["message"]) => void;
}

export interface RoomState {
  /** The room, or null before it is entered and while a server renders. */
  room: Room | null;
  /** The peers in the order in which they joined. */
  peers: Peer[];
  /** The latest error. */
  error: Error | null;
}

/**
 * Be in a room while the component is mounted. Another `name`, `url`, `info`, `me`, `max` or `password` leaves the room, and
 * enters again with all options of that time.
 */
export function useRoom(name: string, options?: UseRoomOptions): RoomState;
