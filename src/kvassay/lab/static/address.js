// The view in the address: #ROOM?name=value&… It never leaves the browser, since a fragment is not sent.

export function address(rooms) {
  const [room, query = ""] = location.hash.replace(/^#/, "").split("?");
  return { room: rooms.includes(room) ? room : rooms[0], view: Object.fromEntries(new URLSearchParams(query)) };
}

export function link(room, view) {
  const kept = Object.entries(view).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const query = new URLSearchParams(kept).toString();
  return query ? `#${room}?${query}` : `#${room}`;
}

// Writes the view without a step in the history, so that Back leaves the room.
export function remember(room, view) {
  history.replaceState(null, "", link(room, view));
}
