// The cards of the pictures to classify: the answer, and the evidence for it when a card is in view.

import { heatOf, nearestOf, thumbnailOf } from "./api.js";
import { NONE, coloursOf, fine, keyOf, keyed, namesOf, percent, setSource, shortName } from "./view.js";

const MOST_BARS = 5;
const find = (id) => document.getElementById(id);

/** What a picture shows, by the person or by the classifier: the id of a class, "none", or null if there is no answer. */
export function answerOf({ result, verdict }) {
  return verdict ?? (!result ? null : result.rejected ? NONE : result.class);
}

/** Draw the cards. With `labelling`, each has buttons that give it a label, so that the classes learn from it. */
export function renderCards(pictures, state, labelling) {
  const colours = coloursOf(state);
  const names = namesOf(state);
  const current = find("question-list").querySelector(":scope > [tabindex='0']")?.dataset.key;
  const first = pictures.some(({ id }) => id === current) ? current : pictures[0]?.id;
  keyed(find("question-list"), pictures, "question-template", (element, picture) => {
    element.tabIndex = picture.id === first ? 0 : -1;
    renderCard(element, picture, { state, colours, names, labelling });
  });
}

function renderCard(element, picture, { state, colours, names, labelling }) {
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
  const remark = remarkOf(result, verdict);
  element.querySelector(".remark").textContent = remark;
  const familiar = element.querySelector(".familiar");
  familiar.textContent = familiarityOf(picture, state);
  familiar.title = explainFamiliarity(result, state);
  element.querySelector(".sure").textContent = verdict ? "✓" : !result ? "" : result.rejected ? "?" : percent(result.probability);
  element.setAttribute("aria-label", `${shortName(picture.name)}: ${describeAnswer(picture, state)}`);
  element.querySelector(".bars-title").hidden = !result?.rejected;
  renderBars(element.querySelector(".bars"), result, names, colours);
  renderLabels(element.querySelector(".labels"), picture, { state, colours, names, labelling });
  renderButtons(element, picture, state);
  renderEvidence(element, picture, state, names);
}

/** The answer for a picture and how sure it is, in words. */
export function describeAnswer(picture, state) {
  const answer = answerOf(picture);
  if (answer === null) return "Waiting for a class";
  return [namesOf(state).get(answer), remarkOf(picture.result, picture.verdict), familiarityOf(picture, state)].filter(Boolean).join(". ");
}

function remarkOf(result, verdict) {
  if (verdict) return "Checked by you";
  if (!result) return "";
  if (result.rejected) return "Unlike your examples";
  return `${percent(result.probability).replace(">\u00a0", "More than ")} sure`;
}

/** How familiar a picture looks. Below the limit, the answer is "none of these", however probable a class is. */
function familiarityOf({ result }, { unfamiliar }) {
  if (!result) return "";
  const limit = result.rejected ? `, below\u00a0${fine(unfamiliar)}` : "";
  return `Familiarity ${fine(result.familiarity)}${limit}`;
}

function explainFamiliarity(result, { unfamiliar }) {
  if (!result) return "";
  return `Of the pictures that show your classes, ${fine(result.familiarity)} look even less like the examples. Below ${fine(unfamiliar)}, the answer is “none of these”.`;
}

/** The labels that a picture most likely has, the answer first: a class, the runner-up, and "none of these". */
function renderLabels(list, picture, { state, colours, names, labelling }) {
  list.hidden = !labelling;
  if (!labelling) return;
  list.setAttribute("aria-label", `What ${shortName(picture.name)} shows`);
  const likely = picture.result.probabilities.slice(0, 2).map((entry) => entry.class);
  const labels = picture.result.rejected ? [NONE, ...likely] : [...likely, NONE];
  keyed(list, labels.map((id) => ({ id })), "label-template", (button, { id }, place) => {
    button.dataset.label = id;
    button.dataset.colour = colours.get(id) ?? "";
    button.classList.toggle("is-outside", id === NONE);
    button.classList.toggle("is-first", place === 0);
    button.querySelector(".choice-name").textContent = names.get(id);
    const key = place === 0 ? "Enter" : keyOf(state, id);
    button.querySelector(".key").textContent = key;
    button.querySelector(".key").hidden = !key;
  });
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
