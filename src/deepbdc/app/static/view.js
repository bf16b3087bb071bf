// Draws the page from the state. Names given by people are set with textContent only, never as HTML.

import { thumbnailOf } from "./api.js";
import { plural } from "./messages.js";

const COLOURS = 8;
export const NONE = "none";
const find = (id) => document.getElementById(id);

/** A probability in whole percent. It is 0 % or 100 % only if it is exactly 0 or 1. */
export function percent(value) {
  if (value > 0.995 && value < 1) return ">\u00a099\u00a0%";
  if (value < 0.005 && value > 0) return "<\u00a01\u00a0%";
  return `${Math.round(value * 100)}\u00a0%`;
}

/** The same for a share that is compared with a small limit: cut to a tenth of a percent below 10 %. */
export function fine(value) {
  if (value >= 0.1) return percent(value);
  if (value > 0 && value < 0.001) return "<\u00a00.1\u00a0%";
  return `${Math.floor(value * 1000 + 1e-9) / 10}\u00a0%`;
}

/** Make the children of a list match `items`. Existing elements are reused, so that the focus is kept. */
export function keyed(list, items, templateId, update) {
  const known = new Map([...list.children].map((element) => [element.dataset.key, element]));
  items.forEach((item, place) => {
    let element = known.get(item.id);
    known.delete(item.id);
    if (!element) {
      element = find(templateId).content.firstElementChild.cloneNode(true);
      element.dataset.key = item.id;
    }
    if (list.children[place] !== element) list.insertBefore(element, list.children[place] ?? null);
    update(element, item, place);
  });
  known.forEach((element) => element.remove());
}

export function setSource(image, source) {
  if (image.getAttribute("src") !== source) image.setAttribute("src", source);
}

/** The colour of each class, by its id. */
export const coloursOf = (state) => new Map(state.classes.map((entry, place) => [entry.id, String(place % COLOURS)]));

/** The name of each possible answer, by the id of the class or "none". */
export const namesOf = (state) => new Map([...state.classes.map((entry) => [entry.id, entry.name]), [NONE, "None of these"]]);

/** The key that moves a picture into a class; empty if there is none. */
export function keyOf(state, classId) {
  if (classId === NONE) return "0";
  const place = state.classes.findIndex((entry) => entry.id === classId);
  return place >= 0 && place < 9 ? String(place + 1) : "";
}

/** The last part of a path. */
export const shortName = (name) => name.split("/").pop();

/** Draw everything but the pictures to classify. */
export function renderFrame(state) {
  const empty = state.classes.length === 0 && state.to_classify.length === 0;
  find("welcome").hidden = !empty;
  find("start-over").disabled = empty;
  find("classes-count").textContent = state.classes.length ? String(state.classes.length) : "";
  find("new-class").maxLength = state.limits.name_length;
  renderUndo(state);
  renderMenu(state);
  renderKept(state, empty);
  const colours = coloursOf(state);
  keyed(find("class-list"), state.classes, "class-template", (element, entry) =>
    renderClass(element, entry, colours.get(entry.id), state));
}

function renderUndo(state) {
  const button = find("undo");
  button.disabled = !state.undo;
  button.title = state.undo ? `Undo ${state.undo} (Ctrl+Z)` : "There is nothing to undo.";
  button.setAttribute("aria-label", state.undo ? `Undo ${state.undo}` : "Undo");
}

function renderMenu(state) {
  const there = { learnt: state.learnt, results: state.has_results };
  for (const link of document.querySelectorAll("[data-needs]")) {
    const ready = there[link.dataset.needs];
    link.setAttribute("aria-disabled", String(!ready));
    link.title = ready ? "" : "There is nothing to save yet.";
  }
}

function renderKept({ kept }, empty) {
  find("kept").hidden = empty;
  find("kept-text").textContent = kept.days
    ? `Your work is saved on this computer after every change, and comes back when you open this page again. It is kept for ${kept.days} days after your last visit.`
    : "Your work is kept until ‘deepbdc app’ ends, or until you have been away for some hours. Save what you need.";
  find("kept-folder").textContent = kept.folder ?? "";
  find("kept-place").hidden = !kept.folder;
}

function renderClass(element, entry, colour, state) {
  element.dataset.drop = entry.id;
  element.dataset.colour = colour;
  const name = element.querySelector(".class-name");
  if (document.activeElement !== name || name.dataset.saved !== entry.name) name.value = entry.name;
  name.dataset.saved = entry.name;
  name.title = entry.name;
  name.maxLength = state.limits.name_length;
  element.querySelector(".count").textContent = plural(entry.pictures.length, "picture");
  const key = element.querySelector(".key");
  key.textContent = keyOf(state, entry.id);
  key.hidden = !key.textContent || state.to_classify.length === 0;
  key.title = `Press ${key.textContent} to move the selected picture here`;
  const remove = element.querySelector(".remove-class");
  remove.setAttribute("aria-label", `Remove the class ${entry.name}`);
  remove.title = "Remove this class";
  const input = element.querySelector("input[type=file]");
  input.dataset.class = entry.id;
  input.setAttribute("aria-label", `Add pictures to ${entry.name}`);
  const camera = element.querySelector("[data-camera]");
  camera.dataset.camera = entry.id;
  camera.setAttribute("aria-label", `Take pictures of ${entry.name}`);
  element.classList.toggle("is-empty", entry.pictures.length === 0);
  keyed(element.querySelector(".thumbs"), entry.pictures, "thumb-template", (thumb, picture) => {
    const button = thumb.firstElementChild;
    button.dataset.picture = picture.id;
    button.setAttribute("aria-label", `${picture.name}, an example of ${entry.name}: move or remove`);
    button.title = picture.name;
    setSource(button.firstElementChild, thumbnailOf(picture.id));
  });
}

/** List where a picture can be moved to; an example can also be moved to the pictures to classify. */
export function renderChoices(state, home, verdict) {
  const colours = coloursOf(state);
  const places = state.classes.map((entry) => ({ ...entry, colour: colours.get(entry.id) }));
  places.push({ id: NONE, name: "None of these", colour: "" });
  if (home !== "" || verdict) places.push({ id: "", name: home === "" ? "Not checked" : "Pictures to classify", colour: "" });
  keyed(find("picture-choices"), places, "choice-template", (button, entry) => {
    button.dataset.choice = entry.id;
    button.dataset.colour = entry.colour;
    button.classList.toggle("is-outside", entry.colour === "");
    button.disabled = entry.id === home && !(home === "" && verdict);
    button.querySelector(".choice-name").textContent = entry.name;
    const key = keyOf(state, entry.id);
    button.querySelector(".key").textContent = key;
    button.querySelector(".key").hidden = !key;
  });
}
