// Opens the room that the address names.

import { address } from "./address.js";
import { h, problem } from "./dom.js";

const ROOMS = {
  bytes: () => import("./bytes_room.js"),
  experiment: () => import("./experiment_room.js"),
  network: () => import("./network_room.js"),
  packs: () => import("./packs_room.js"),
};

const place = document.getElementById("room");
let current = null;
let leave = null;

async function open() {
  const { room, view } = address(Object.keys(ROOMS));
  current = room;
  for (const link of document.querySelectorAll("[data-room]")) {
    if (link.dataset.room === room) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  leave?.();
  leave = null;
  try {
    const module = await ROOMS[room]();
    if (current !== room) return;
    const holder = h("div");
    place.replaceChildren(holder);
    document.title = `${module.TITLE} · kvassay lab`;
    leave = (await module.enter(holder, view)) ?? null;
  } catch (error) {
    place.replaceChildren(problem(error));
  }
}

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  place.focus();
});
window.addEventListener("hashchange", open);
open();
