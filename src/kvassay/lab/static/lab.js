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
let opening = 0;
let leave = null;

async function open() {
  const mine = ++opening;
  const { room, view } = address(Object.keys(ROOMS));
  for (const link of document.querySelectorAll("[data-room]")) {
    if (link.dataset.room === room) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  leave?.();
  leave = null;
  try {
    const module = await ROOMS[room]();
    if (mine !== opening) return;
    const holder = h("div");
    place.replaceChildren(holder);
    document.title = `${module.TITLE} · kvassay lab`;
    // A slow room may be left before it is drawn; rooms look whether their holder is still on the page.
    const left = await module.enter(holder, view);
    if (mine === opening) leave = left ?? null;
    else left?.();
  } catch (error) {
    if (mine === opening) place.replaceChildren(problem(error));
  }
}

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  place.focus();
});
window.addEventListener("hashchange", open);
open();
