// "Check my examples": what the server found among the examples, and what the person can do about it.

import { randomId, request, thumbnailOf } from "./api.js";
import { plural } from "./messages.js";
import { keyed, namesOf, percent, setSource, shortName } from "./view.js";

const SOME = 3; // pictures of a class that stand for it
const find = (id) => document.getElementById(id);
let state = null;
let act = null;
let isOpen = false;
let round = 0; // counts the requests, so that only the latest answer counts
let latest = Promise.resolve(); // the request that is under way

// What each kind of finding says. `describe` gives the text, the pictures, and the actions [text, kind, function].

const GROUPS = [
  {
    id: "wrong_labels",
    title: "Probably in the wrong class",
    advice: "The other examples say so. Look before you move one: with few examples, it may be a false alarm.",
    describe(finding, { classes, names }) {
      const [id] = finding.pictures;
      const [home, other] = [classes.get(finding.class), classes.get(finding.suggestion)];
      return {
        text: `“${names.get(id)}” is an example of ${home}, but looks like ${other} (${percent(finding.sureness)} sure).`,
        actions: [
          [`Move to ${other}`, "primary", () => act.move(id, finding.suggestion)],
          [`Keep in ${home}`, "", () => keep(finding, "label")],
          ["Delete", "danger", () => act.remove([id])],
        ],
      };
    },
  },
  {
    id: "twins",
    title: "The same picture more than once",
    advice: "Copies teach nothing new, and make the expected accuracy look better than it is.",
    describe(finding, { homes, names }) {
      const { pictures, identical } = finding;
      const all = pictures.length === 2 ? "both" : `all ${pictures.length}`;
      const listed = pictures.map((id) => `“${names.get(id)}”`).join(", ").replace(/, ([^,]*)$/, " and $1");
      const same = `${listed} are ${identical ? "" : "nearly "}the same picture`;
      const keepAll = [`Keep ${all}`, "", () => keep(finding, "twins")];
      if (finding.same_label) {
        return { text: `${same}.`, actions: [["Keep only the first", "primary", () => act.remove(pictures.slice(1))], keepAll] };
      }
      const remove = pictures.map((id) => [`Delete from ${homes.get(id)}`, "danger", () => act.remove([id])]);
      return { text: `${same}, but in different classes. At most one of them is right.`, actions: [...remove, keepAll] };
    },
  },
  {
    id: "outliers",
    title: "Unlike the rest of their class",
    advice: "Is the right thing in the picture, and large enough? Unusual pictures that are right are worth keeping.",
    describe(finding, { classes, names }) {
      const [id] = finding.pictures;
      return {
        text: `“${names.get(id)}” is unlike the other examples of ${classes.get(finding.class)}, and like no other class.`,
        actions: [["Keep", "", () => keep(finding, "outlier")], ["Delete", "danger", () => act.remove([id])]],
      };
    },
  },
  {
    id: "alike",
    title: "Classes that are hard to tell apart",
    advice: "Add examples that show the difference, or make one class of the two.",
    describe(finding, { classes }) {
      const [one, other] = finding.classes.map((id) => classes.get(id));
      const text = `${one} and ${other}: ${finding.confused} of ${plural(finding.examples, "example")} are taken for the other class.`;
      return { text, pictures: finding.classes.flatMap(someOf), actions: [] };
    },
  },
  {
    id: "few",
    title: "Classes with very few examples",
    advice: "Five examples are much better than one. With fewer than three, a wrong one cannot be found.",
    describe(finding, { classes }) {
      const text = `${classes.get(finding.class)} has ${plural(finding.examples, "example")}.`;
      return { text, pictures: someOf(finding.class), actions: [], addTo: finding.class };
    },
  },
];

const someOf = (classId) =>
  (state.classes.find((entry) => entry.id === classId)?.pictures ?? []).slice(0, SOME).map(({ id }) => id);

const keep = ({ pictures }, finding) => act.keep(pictures, finding);

// Showing

/** Show what belongs to this state. While the findings are open, every change of the examples is checked again. */
export function renderChecking(newState) {
  state = newState;
  find("check-examples").hidden = !state.learnt;
  if (isOpen && !state.learnt) close();
  if (isOpen) latest = check();
}

async function check() {
  round += 1;
  const mine = round;
  find("check").setAttribute("aria-busy", "true");
  try {
    const found = await request("GET", "/api/findings");
    if (mine !== round) return; // a newer request is under way
    if (found.lesson === state.lesson) showFindings(found);
    else await act.refresh(); // the examples have changed elsewhere, like in another tab; this checks again
  } catch (error) {
    if (mine === round) find("check-text").textContent = error.message;
  }
  if (mine === round) find("check").removeAttribute("aria-busy");
}

function showFindings(found) {
  const context = {
    classes: namesOf(state),
    names: new Map(state.classes.flatMap((entry) => entry.pictures.map(({ id, name }) => [id, shortName(name)]))),
    homes: new Map(state.classes.flatMap((entry) => entry.pictures.map(({ id }) => [id, entry.name]))),
  };
  const groups = GROUPS.filter(({ id }) => found[id].length);
  const count = groups.reduce((sum, { id }) => sum + found[id].length, 0);
  const checked = `${plural(found.examples, "example")} checked`;
  find("check-text").textContent = count
    ? `${checked}: ${plural(count, "thing")} to look at. Every change can be undone.`
    : `${checked}, and nothing found. Your examples look good.`;
  keyed(find("check-groups"), groups, "group-template", (element, group) => {
    element.querySelector("h3").textContent = group.title;
    element.querySelector(".check-advice").textContent = group.advice;
    keyed(element.querySelector(".check-list"), found[group.id], "finding-template", (entry, finding) =>
      renderFinding(entry, finding, group.describe(finding, context), context));
  });
}

function renderFinding(element, finding, { text, pictures = finding.pictures, actions, addTo }, { names }) {
  element.querySelector(".finding-text").textContent = text;
  const shown = pictures.map((id) => ({ id }));
  keyed(element.querySelector(".finding-pictures"), shown, "thumb-template", (thumb, { id }) => {
    const button = thumb.firstElementChild;
    button.dataset.picture = id;
    button.setAttribute("aria-label", `${names.get(id)}: move or remove`);
    button.title = names.get(id);
    setSource(button.firstElementChild, thumbnailOf(id));
  });
  const buttons = actions.map(([label, kind, run], place) => ({ id: `${place} ${label}`, label, kind, run }));
  const list = element.querySelector(".finding-actions");
  list.hidden = !buttons.length && !addTo;
  if (addTo) renderAdding(list, addTo);
  else {
    keyed(list, buttons, "action-template", (button, { label, kind, run }) => {
      button.textContent = label;
      button.className = `small ${kind}`;
      button.onclick = () => perform(element, run);
    });
  }
}

/** A button that adds pictures to a class, as in the class itself. */
function renderAdding(list, classId) {
  if (!list.children.length) list.append(find("add-template").content.firstElementChild.cloneNode(true));
  const input = list.querySelector("input");
  input.dataset.class = classId;
  input.setAttribute("aria-label", `Add more pictures to ${namesOf(state).get(classId)}`);
}

/** Do something about a finding, then move the focus to the one that comes next. */
async function perform(element, run) {
  const place = [...document.querySelectorAll(".finding")].indexOf(element);
  await run();
  await latest;
  const left = [...document.querySelectorAll(".finding")];
  (left[Math.min(place, left.length - 1)]?.querySelector(".finding-actions :is(button, input)") ?? find("check-title")).focus();
}

function close() {
  isOpen = false;
  round += 1;
  find("check").hidden = true;
}

/** `actions` are move(id, classId), remove(ids, batch), keep(ids, finding) and refresh(). */
export function watchChecking(actions) {
  act = { ...actions, remove: (ids) => actions.remove(ids, randomId()) };
  find("check-examples").addEventListener("click", () => {
    isOpen = true;
    find("check").hidden = false;
    find("check-text").textContent = "Checking your examples …";
    find("check-title").focus();
    latest = check();
  });
  find("check-close").addEventListener("click", () => {
    close();
    find("check-examples").focus();
  });
}
