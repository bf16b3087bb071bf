// Reviewing the answers: which pictures are shown in which order, how many there are of each class, the accuracy to
// expect, and the keys.

import { request } from "./api.js";
import { answerOf, renderCards } from "./cards.js";
import { plural, say, showProblems } from "./messages.js";
import { chooseMore, chosenPictures, forgetChosen, openPictures } from "./suggesting.js";
import { NONE, coloursOf, fine, keyed, namesOf, percent } from "./view.js";

const MANY = 12; // with more pictures, the grid is shown unless the person chose otherwise
const OPEN = "open"; // the filter for pictures that are not checked yet
const NEXT = "next"; // the filter for pictures to label next
const find = (id) => document.getElementById(id);
let filter = "";
let shown = [];
let state = null;

/** How sure an answer is. Pictures that look like no class come first, and checked ones last. */
function sureness({ result, verdict }) {
  if (verdict) return 2;
  if (!result) return -2;
  return result.rejected ? result.probability - 1 : result.probability;
}

const ORDERS = {
  sure: (one, other) => sureness(one) - sureness(other),
  added: () => 0,
  name: (one, other) => one.name.localeCompare(other.name, undefined, { numeric: true }),
};

const passes = (picture) => filter === "" || (filter === OPEN ? !picture.verdict : answerOf(picture) === filter);

export function renderReview(newState) {
  state = newState;
  const all = state.to_classify;
  checkFilter(all);
  shown = filter === NEXT ? chosenPictures(state) : all.filter(passes).sort(ORDERS[find("order").value]);
  find("questions-count").textContent = all.length ? String(all.length) : "";
  find("review").hidden = all.length < 2 || !state.learnt;
  find("unfamiliar").textContent = fine(state.unfamiliar);
  renderHint();
  renderFilters(all);
  renderView(all.length);
  const open = shown.filter((picture) => picture.result && !picture.verdict).length;
  find("confirm-all").disabled = open === 0;
  find("confirm-all").textContent = open ? `Confirm ${open === shown.length ? "all" : "the other"} ${open}` : "All confirmed";
  renderCards(shown, state, filter === NEXT);
  renderExpected();
  if (filter === NEXT) suggest();
}

/** Show all pictures if there are none left of those that were chosen. */
function checkFilter(all) {
  if (filter === NEXT) {
    if (openPictures(state).length) return;
    if (all.length) say("Every picture has a label now.");
    filter = "";
  }
  if (filter && filter !== OPEN && filter !== NONE && !state.classes.some((entry) => entry.id === filter)) filter = "";
  if (!all.some(passes)) filter = "";
}

async function suggest() {
  try {
    if ((await chooseMore(state)) && filter === NEXT) renderReview(state);
  } catch (error) {
    showProblems("The pictures to label next could not be chosen", [error.message]);
  }
}

function renderHint() {
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

function renderFilters(all) {
  const counts = new Map();
  for (const picture of all) counts.set(answerOf(picture), (counts.get(answerOf(picture)) ?? 0) + 1);
  const colours = coloursOf(state);
  const names = namesOf(state);
  const open = all.filter((picture) => !picture.verdict).length;
  const entries = [
    ...(openPictures(state).length ? [{ id: NEXT, name: "Label these next" }] : []),
    { id: "", name: "All", count: all.length },
    ...(open < all.length ? [{ id: OPEN, name: "Not checked", count: open }] : []),
    ...[...names].filter(([id]) => counts.has(id)).map(([id, name]) => ({ id, name, count: counts.get(id), answer: true })),
  ];
  keyed(find("filters"), entries, "filter-template", (button, entry) => {
    button.dataset.filter = entry.id;
    button.dataset.colour = colours.get(entry.id) ?? "";
    button.classList.toggle("is-outside", entry.id === NONE);
    button.setAttribute("aria-pressed", String(filter === entry.id));
    button.querySelector(".dot").hidden = !entry.answer;
    button.querySelector(".filter-name").textContent = entry.name;
    button.querySelector(".filter-count").textContent = entry.count === undefined ? "" : String(entry.count);
    button.querySelector(".filter-count").hidden = entry.count === undefined;
    button.classList.toggle("is-next", entry.id === NEXT);
  });
}

function renderView(count) {
  const grid = filter !== NEXT && (stored("view") ?? (count > MANY ? "grid" : "cards")) === "grid";
  find("next-hint").hidden = filter !== NEXT;
  find("review-tools").hidden = filter === NEXT;
  find("question-list").classList.toggle("is-labelling", filter === NEXT);
  find("question-list").classList.toggle("is-grid", grid);
  find("view-grid").setAttribute("aria-pressed", String(grid));
  find("view-cards").setAttribute("aria-pressed", String(!grid));
  find("all-heat").hidden = !state.learnt || count === 0 || grid;
}

function stored(name) {
  try {
    return localStorage.getItem(`deepbdc ${name}`);
  } catch {
    return null; // the browser keeps nothing
  }
}

function choose(view) {
  try {
    localStorage.setItem("deepbdc view", view);
  } catch { /* it is forgotten when the page is closed */ }
  renderReview(state);
}

// The accuracy to expect

let expectedOf = -1; // the lesson that it was asked for

async function renderExpected() {
  const box = find("expected");
  const testable = state.classes.filter((entry) => entry.pictures.length).length > 1;
  box.hidden = find("review").hidden || !testable;
  if (box.hidden) find("expected-how").hidden = true;
  if (box.hidden) expectedOf = -1;
  if (box.hidden || expectedOf === state.lesson) return;
  const { lesson } = state;
  expectedOf = lesson;
  await new Promise((resolve) => setTimeout(resolve, 600)); // while pictures are added, the examples change all the time
  if (expectedOf !== lesson) return;
  try {
    const found = await request("GET", "/api/expected");
    if (expectedOf === lesson) showExpected(found);
  } catch {
    expectedOf = -1; // the next state asks again
  }
}

function showExpected({ tested, right, low, high, classes }) {
  const text = find("expected-text");
  find("expected").dataset.tested = String(tested);
  if (!tested) {
    text.textContent = "How many answers are right cannot be told yet: add a second picture to the classes.";
    find("expected-how").hidden = true;
    return;
  }
  text.textContent = `Expect ${percent(low)} to ${percent(high)} of the answers to be right: of ${plural(tested, "example")} that were held out, ${right} were recognised.`;
  const names = namesOf(state);
  find("expected-how").hidden = false;
  const rows = Object.entries(classes).map(([id, counts]) => ({ id, ...counts }));
  keyed(find("expected-classes"), rows, "expected-template", (row, entry) => {
    row.querySelector(".expected-name").textContent = names.get(entry.id) ?? "";
    row.querySelector(".expected-value").textContent = `${entry.right} of ${entry.tested}`;
  });
}

// What the person does

/** `act` are the actions: confirm(ids, verdict), move(id, target), remove(id), open(id, card), undo(). */
export function watchReview(act) {
  find("filters").addEventListener("click", (event) => {
    const button = event.target.closest("[data-filter]");
    if (!button) return;
    filter = button.dataset.filter;
    if (filter === NEXT) forgetChosen();
    renderReview(state);
  });
  find("order").addEventListener("change", () => renderReview(state));
  find("view-grid").addEventListener("click", () => choose("grid"));
  find("view-cards").addEventListener("click", () => choose("cards"));
  find("confirm-all").addEventListener("click", () => {
    act.confirm(shown.filter((picture) => picture.result && !picture.verdict).map((picture) => picture.id), "confirm");
  });
  find("question-list").addEventListener("focusin", (event) => {
    const card = event.target.closest(".question");
    for (const other of find("question-list").children) other.tabIndex = other === card ? 0 : -1;
  });
  find("question-list").addEventListener("keydown", (event) => react(event, act));
}

/** Run an action on a card, then move the focus to the card that comes next now. */
export async function advance(card, action) {
  const cards = [...find("question-list").children];
  const place = cards.indexOf(card);
  const next = cards[place + 1]?.dataset.key;
  await action();
  const left = [...find("question-list").children];
  const target = left.find((other) => other.dataset.key === next) ?? left[Math.min(place, left.length - 1)];
  (target ?? find("questions-title")).focus();
  target?.scrollIntoView({ block: "nearest" });
}

function react(event, act) {
  const card = event.target.closest(".question");
  if (!card || event.ctrlKey || event.metaKey || event.altKey) return;
  const id = card.dataset.picture;
  const own = event.target === card; // not a button in it
  const { key } = event;
  const picture = state.to_classify.find((entry) => entry.id === id);
  let action = null;
  if (own && key.startsWith("Arrow")) step(card, key);
  else if (own && key === "Enter" && filter === NEXT) action = () => act.move(id, answerOf(picture));
  else if (own && key === "Enter") {
    if (picture.result || picture.verdict) action = () => act.confirm([id], picture.verdict ? null : "confirm");
  } else if (own && key === " ") act.open(id, card);
  else if (key === "Delete" || key === "Backspace") action = () => act.remove(id);
  else if (key === "0") action = () => act.move(id, NONE);
  else if (/^[1-9]$/.test(key)) {
    const target = state.classes[Number(key) - 1];
    if (target) action = () => act.move(id, target.id);
    else say(`There is no class ${key}.`);
  } else return;
  event.preventDefault();
  if (action) advance(card, action);
}

/** Move the focus to a neighbour in the grid. */
function step(card, key) {
  const cards = [...find("question-list").children];
  const columns = cards.findIndex((other) => other.offsetTop !== cards[0].offsetTop);
  const wide = columns === -1 ? cards.length : columns;
  const shift = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -wide, ArrowDown: wide }[key];
  const target = cards[cards.indexOf(card) + shift];
  target?.focus();
  target?.scrollIntoView({ block: "nearest" });
}
