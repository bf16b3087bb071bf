// Draws the page from the state. Names given by people are set with textContent only, never as HTML.

import { heatOf, nearestOf, thumbnailOf } from "./api.js";

const COLOURS = 8;
const MOST_BARS = 5;
const find = (id) => document.getElementById(id);

/** A probability in whole percent. It is 0 % or 100 % only if it is exactly 0 or 1. */
function percent(value) {
  if (value > 0.995 && value < 1) return "> 99 %";
  if (value < 0.005 && value > 0) return "< 1 %";
  return `${Math.round(value * 100)} %`;
}

export const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

/** Make the children of a list match `items`. Existing elements are reused, so that the focus is kept. */
function keyed(list, items, templateId, update) {
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

function setSource(image, source) {
  if (image.getAttribute("src") !== source) image.setAttribute("src", source);
}

export function render(state) {
  const empty = state.classes.length === 0 && state.to_classify.length === 0;
  find("welcome").hidden = !empty;
  find("start-over").disabled = empty;
  find("classes-count").textContent = state.classes.length ? String(state.classes.length) : "";
  find("questions-count").textContent = state.to_classify.length ? String(state.to_classify.length) : "";
  find("all-heat").hidden = !state.learnt || state.to_classify.length === 0;
  find("new-class").maxLength = state.limits.name_length;
  renderHint(state);
  renderMenu(state);
  const colours = new Map(state.classes.map((entry, place) => [entry.id, String(place % COLOURS)]));
  keyed(find("class-list"), state.classes, "class-template", (element, entry) =>
    renderClass(element, entry, colours.get(entry.id), state));
  keyed(find("question-list"), state.to_classify, "question-template", (element, picture) =>
    renderQuestion(element, picture, colours, state));
}

function renderHint(state) {
  const hint = find("questions-hint");
  const filled = state.classes.filter((entry) => entry.pictures.length);
  hint.textContent = "";
  if (!state.learnt && state.to_classify.length) {
    hint.textContent = "The answers appear as soon as a class has a picture.";
  } else if (filled.length === 1 && state.to_classify.length) {
    hint.textContent = `With only one class, the answer is either ${filled[0].name} or none of these.`;
  }
  hint.hidden = !hint.textContent;
}

function renderMenu(state) {
  const there = { learnt: state.learnt, results: state.has_results };
  for (const link of document.querySelectorAll("[data-needs]")) {
    const ready = there[link.dataset.needs];
    link.setAttribute("aria-disabled", String(!ready));
    link.title = ready ? "" : "There is nothing to save yet.";
  }
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
  const remove = element.querySelector(".remove-class");
  remove.setAttribute("aria-label", `Remove the class ${entry.name}`);
  remove.title = "Remove this class";
  const input = element.querySelector("input[type=file]");
  input.dataset.class = entry.id;
  input.setAttribute("aria-label", `Add pictures to ${entry.name}`);
  element.classList.toggle("is-empty", entry.pictures.length === 0);
  keyed(element.querySelector(".thumbs"), entry.pictures, "thumb-template", (thumb, picture) => {
    const button = thumb.firstElementChild;
    button.dataset.picture = picture.id;
    button.setAttribute("aria-label", `${picture.name}, an example of ${entry.name}: move or remove`);
    button.title = picture.name;
    setSource(button.firstElementChild, thumbnailOf(picture.id));
  });
}

function renderQuestion(element, picture, colours, state) {
  const result = picture.result;
  const names = new Map(state.classes.map((entry) => [entry.id, entry.name]));
  element.dataset.picture = picture.id;
  element.dataset.colour = result && !result.rejected ? colours.get(result.class) : "";
  element.classList.toggle("is-rejected", Boolean(result?.rejected));
  const image = element.querySelector(".picture");
  setSource(image, thumbnailOf(picture.id));
  image.alt = picture.name;
  const fileName = element.querySelector(".file-name");
  fileName.textContent = picture.name;
  fileName.title = picture.name;
  element.querySelector(".label").textContent =
    !result ? "Waiting for a class" : result.rejected ? "None of these" : names.get(result.class);
  element.querySelector(".remark").textContent = remark(result, names);
  renderBars(element.querySelector(".bars"), result, names, colours);
  const move = element.querySelector(".move");
  move.disabled = state.classes.length === 0;
  move.setAttribute("aria-label", `Move ${picture.name} to a class`);
  const remove = element.querySelector(".remove");
  remove.setAttribute("aria-label", `Remove ${picture.name}`);
  remove.title = "Remove this picture";
  renderEvidence(element, picture, state, names);
}

function remark(result, names) {
  if (!result) return "";
  if (result.rejected) return `Not enough like ${names.get(result.class)}`;
  return `${percent(result.probability).replace(">", "More than")} sure`;
}

function renderBars(list, result, names, colours) {
  const shown = (result?.probabilities ?? []).slice(0, MOST_BARS).map((entry) => ({ ...entry, id: entry.class }));
  keyed(list, shown, "bar-template", (bar, entry) => {
    bar.dataset.colour = colours.get(entry.id);
    const name = bar.querySelector(".bar-name");
    name.textContent = names.get(entry.id);
    name.title = names.get(entry.id);
    bar.querySelector(".bar-value").textContent = percent(entry.probability);
    bar.querySelector(".bar-fill").style.width = `${Math.max(entry.probability * 100, 1)}%`;
  });
}

/** List the classes that a picture can be moved to; an example can also be moved to the pictures to classify. */
export function renderChoices(state, home) {
  const places = state.classes.map((entry, place) => ({ ...entry, colour: String(place % COLOURS) }));
  if (home !== "") places.push({ id: "", name: "Pictures to classify", colour: "" });
  keyed(find("picture-choices"), places, "choice-template", (button, entry) => {
    button.dataset.choice = entry.id;
    button.dataset.colour = entry.colour;
    button.disabled = entry.id === home;
    button.querySelector(".choice-name").textContent = entry.name;
  });
}

// Evidence: the heat map and the most similar examples. They are loaded when a card scrolls into view.

const sight = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    entry.target.dataset.seen = String(entry.isIntersecting);
    if (entry.isIntersecting) loadEvidence(entry.target);
  }
}, { rootMargin: "200px" });

function renderEvidence(element, picture, state, names) {
  const toggle = element.querySelector(".heat-toggle");
  if (!element.evidence) toggle.setAttribute("aria-pressed", find("all-heat").getAttribute("aria-pressed"));
  element.evidence = { picture, state, names };
  toggle.hidden = !picture.result;
  toggle.title = "Red speaks for the class, blue against it.";
  toggle.setAttribute("aria-label", `Heat map of ${picture.name}`);
  element.querySelector(".near").hidden = !picture.result;
  if (element.dataset.seen === "true") loadEvidence(element);
  else sight.observe(element);
}

export function showHeat(element, pressed) {
  element.querySelector(".heat-toggle").setAttribute("aria-pressed", String(pressed));
  loadEvidence(element);
}

function loadEvidence(element) {
  const { picture, state } = element.evidence;
  const heat = element.querySelector(".heat");
  const pressed = element.querySelector(".heat-toggle").getAttribute("aria-pressed") === "true";
  heat.hidden = !pressed || !picture.result;
  if (!heat.hidden) {
    setSource(heat, heatOf(picture.id, state.lesson));
    const name = element.evidence.names.get(picture.result.class);
    heat.alt = `Where the evidence for ${name} is in ${picture.name}`;
  }
  if (picture.result && element.dataset.lesson !== String(state.lesson)) loadNearest(element);
}

async function loadNearest(element) {
  const { picture, state } = element.evidence;
  element.dataset.lesson = String(state.lesson);
  let found;
  try {
    found = await nearestOf(picture.id);
  } catch {
    return; // the picture or its class has just been removed: the next state shows that
  }
  if (element.dataset.lesson !== String(state.lesson)) return; // a newer request is under way
  keyed(element.querySelector(".near-list"), found, "near-template", (entry, near) => {
    const image = entry.querySelector("img");
    setSource(image, thumbnailOf(near.id));
    image.alt = `An example of ${near.label}`;
    entry.title = near.label;
    entry.querySelector(".near-value").textContent = near.similarity.toFixed(2);
  });
}

// Messages

export function say(text) {
  const status = find("status");
  status.textContent = text;
  status.classList.add("is-shown");
  clearTimeout(say.timer);
  say.timer = setTimeout(() => status.classList.remove("is-shown"), 5000);
}

export function showProgress(text, done, all) {
  const bar = find("progress-bar");
  find("progress").hidden = text === null;
  document.getElementById("main").setAttribute("aria-busy", String(text !== null));
  if (text === null) return;
  find("progress-text").textContent = text;
  if (all) Object.assign(bar, { max: all, value: done });
  else bar.removeAttribute("value");
}

export function showProblems(title, problems) {
  find("problems").hidden = problems.length === 0;
  find("problems-title").textContent = title;
  find("problems-list").replaceChildren(...problems.map((text) => {
    const entry = document.createElement("li");
    entry.textContent = text;
    return entry;
  }));
}
