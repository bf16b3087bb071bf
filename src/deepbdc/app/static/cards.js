// The cards of the pictures to classify: the answer, and the evidence for it when a card is in view.

import { heatOf, nearestOf, thumbnailOf } from "./api.js";
import { NONE, coloursOf, keyed, namesOf, percent, setSource, shortName } from "./view.js";

const MOST_BARS = 5;
const find = (id) => document.getElementById(id);

/** What a picture shows, by the person or by the classifier: the id of a class, "none", or null if there is no answer. */
export function answerOf({ result, verdict }) {
  return verdict ?? (!result ? null : result.rejected ? NONE : result.class);
}

export function renderCards(pictures, state) {
  const colours = coloursOf(state);
  const names = namesOf(state);
  const current = find("question-list").querySelector(":scope > [tabindex='0']")?.dataset.key;
  const first = pictures.some(({ id }) => id === current) ? current : pictures[0]?.id;
  keyed(find("question-list"), pictures, "question-template", (element, picture) => {
    element.tabIndex = picture.id === first ? 0 : -1;
    renderCard(element, picture, { state, colours, names });
  });
}

function renderCard(element, picture, { state, colours, names }) {
  const { result, verdict } = picture;
  const answer = answerOf(picture);
  element.dataset.picture = picture.id;
  element.dataset.colour = colours.get(answer) ?? "";
  element.classList.toggle("is-rejected", answer === NONE);
  element.classList.toggle("is-checked", Boolean(verdict));
  const image = element.querySelector(".picture");
  setSource(image, thumbnailOf(picture.id));
  image.alt = picture.name;
  const fileName = element.querySelector(".file-name");
  fileName.textContent = shortName(picture.name);
  fileName.title = picture.name;
  const label = answer === null ? "Waiting for a class" : names.get(answer);
  element.querySelector(".label").textContent = label;
  element.querySelector(".label").title = label;
  const remark = remarkOf(result, verdict, names);
  element.querySelector(".remark").textContent = remark;
  element.querySelector(".sure").textContent = verdict ? "✓" : !result ? "" : result.rejected ? "?" : percent(result.probability);
  element.setAttribute("aria-label", `${shortName(picture.name)}: ${label}. ${remark}`);
  renderBars(element.querySelector(".bars"), result, names, colours);
  renderButtons(element, picture, state);
  renderEvidence(element, picture, state, names);
}

function remarkOf(result, verdict, names) {
  if (verdict) return "Checked by you";
  if (!result) return "";
  if (result.rejected) return `Not enough like ${names.get(result.class)}`;
  return `${percent(result.probability).replace(">", "More than")} sure`;
}

function renderButtons(element, picture, state) {
  const name = shortName(picture.name);
  const check = element.querySelector(".check");
  check.disabled = !picture.result && !picture.verdict;
  check.setAttribute("aria-pressed", String(Boolean(picture.verdict)));
  check.setAttribute("aria-label", `${picture.verdict ? "Uncheck" : "Confirm the answer for"} ${name}`);
  check.title = picture.verdict ? "Checked by you" : "The answer is right (Enter)";
  const move = element.querySelector(".move");
  move.disabled = state.classes.length === 0;
  move.setAttribute("aria-label", `Move ${name} to a class`);
  move.title = "Move it to a class (Space)";
  const remove = element.querySelector(".remove");
  remove.setAttribute("aria-label", `Remove ${name}`);
  remove.title = "Remove this picture (Delete)";
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

// Evidence: the heat map and the most similar examples. They are loaded when a large card scrolls into view.

const sight = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    entry.target.dataset.seen = String(entry.isIntersecting);
    if (entry.isIntersecting) loadEvidence(entry.target);
  }
}, { rootMargin: "200px" });

const isGrid = () => find("question-list").classList.contains("is-grid");

function renderEvidence(element, picture, state, names) {
  const toggle = element.querySelector(".heat-toggle");
  if (!element.evidence) toggle.setAttribute("aria-pressed", find("all-heat").getAttribute("aria-pressed"));
  element.evidence = { picture, state, names };
  toggle.hidden = !picture.result;
  toggle.title = "Red speaks for the class, blue against it.";
  toggle.setAttribute("aria-label", `Heat map of ${shortName(picture.name)}`);
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
  heat.hidden = !pressed || !picture.result || isGrid();
  if (!heat.hidden) {
    setSource(heat, heatOf(picture.id, state.lesson));
    const name = element.evidence.names.get(picture.result.class);
    heat.alt = `Where the evidence for ${name} is in ${shortName(picture.name)}`;
  }
  if (!isGrid() && picture.result && element.dataset.lesson !== String(state.lesson)) loadNearest(element);
}

async function loadNearest(element) {
  const { picture, state } = element.evidence;
  element.dataset.lesson = String(state.lesson);
  let found;
  try {
    found = await nearestOf(picture.id);
  } catch {
    delete element.dataset.lesson;
    return; // the picture has just been removed, or the connection is lost: the next state shows that
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
