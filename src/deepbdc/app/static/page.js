// Reacts to what the person does. The server keeps the state; the page shows the state in each response.

import { request, thumbnailOf, upload } from "./api.js";
import { watchDragging } from "./dragging.js";
import { plural, render, renderChoices, say, showHeat, showProblems, showProgress } from "./view.js";

const REFRESH_AFTER = 5; // uploads, so that the first answers appear while the rest is uploaded
const find = (id) => document.getElementById(id);
let state = null;
let limits = null;
let uploading = Promise.resolve();

function show(answer) {
  limits = answer.limits ?? limits;
  state = { ...answer, limits };
  render(state);
}

const refresh = async () => show(await request("GET", "/api/state"));

/** Send a request whose response is the new state. Show the state, and a message about success or failure. */
async function change(method, path, body, done) {
  try {
    const answer = await request(method, path, body);
    show(answer);
    showProblems("", []);
    if (done) say(done);
    return answer;
  } catch (error) {
    showProblems("This did not work", [error.message]);
    if (error.status === 404) await refresh().catch(() => {});
    return null;
  }
}

const className = (classId) => state.classes.find((entry) => entry.id === classId)?.name;

// Pictures

function addFiles(files, classId) {
  const waiting = [...files];
  if (waiting.length) uploading = uploading.then(() => uploadAll(waiting, classId));
}

async function uploadAll(files, classId) {
  const problems = [];
  let added = 0;
  for (const [place, file] of files.entries()) {
    showProgress(`Reading picture ${place + 1} of ${files.length}`, place, files.length);
    try {
      checkSize(file, limits.file_bytes);
      await upload(file, classId);
      added += 1;
      if (added % REFRESH_AFTER === 0) await refresh();
    } catch (error) {
      problems.push(error.message.startsWith(file.name) ? error.message : `${file.name}: ${error.message}`);
      if (error.status === 409 || error.status === 404) break; // the remaining files would fail, too
    }
  }
  showProgress(null);
  await refresh().catch((error) => problems.push(error.message));
  showProblems(`${plural(files.length - added, "file")} left out`, problems);
  if (added) say(`${plural(added, "picture")} added${classId && className(classId) ? ` to ${className(classId)}` : ""}.`);
}

function checkSize(file, most) {
  if (file.size > most) {
    throw new Error(`This file has ${(file.size / 2 ** 20).toFixed(1)} MB. At most ${most / 2 ** 20} MB are accepted.`);
  }
}

async function movePicture(pictureId, classId) {
  const target = classId === null ? "the pictures to classify" : className(classId);
  await change("PATCH", `/api/pictures/${pictureId}`, { class_id: classId }, `Moved to ${target}. All answers are updated.`);
}

async function removePicture(pictureId) {
  await change("DELETE", `/api/pictures/${pictureId}`, undefined, "Picture removed.");
}

/** Run an action that may remove a card. If it does, move the focus to the next card. */
async function keepPlace(card, action) {
  const list = card.closest("ul");
  const place = [...list.children].indexOf(card);
  await action();
  if (card.isConnected) return;
  const next = list.children[Math.min(place, list.children.length - 1)];
  const heading = list.id === "question-list" ? "questions-title" : "classes-title";
  (next?.querySelector(".move") ?? next?.querySelector("button") ?? find(heading)).focus();
}

document.addEventListener("change", (event) => {
  const input = event.target;
  if (input.matches("input[type=file][data-class]")) {
    addFiles(input.files, input.dataset.class || null);
    input.value = "";
  } else if (input.matches(".class-name")) {
    renameClass(input);
  }
});

document.addEventListener("click", (event) => {
  const button = event.target.closest("button, a");
  const card = button?.closest(".question");
  if (button?.matches(".heat-toggle")) toggleHeat([card], button);
  else if (button?.matches(".question .remove")) keepPlace(card, () => removePicture(card.dataset.picture));
  else if (button?.matches(".remove-class")) removeClass(button.closest(".class").dataset.drop);
  else if (button?.matches(".question .move")) openPicture(card.dataset.picture, card);
  else if (button?.matches(".thumb button")) openPicture(button.dataset.picture, button);
  else if (button?.getAttribute("aria-disabled") === "true") event.preventDefault();
  if (!event.target.closest("#files-menu summary, #files-menu .choose")) find("files-menu").open = false;
});

find("files-menu").addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  find("files-menu").open = false;
  find("files-menu").querySelector("summary").focus();
});

document.addEventListener("paste", (event) => {
  const files = event.clipboardData?.files ?? [];
  if (!files.length) return;
  event.preventDefault();
  addFiles(files, document.activeElement?.closest("[data-drop]")?.dataset.drop || null);
});

watchDragging({ addFiles, movePicture });

find("all-heat").addEventListener("click", (event) => {
  toggleHeat([...find("question-list").children], event.currentTarget);
});

function toggleHeat(cards, button) {
  const pressed = button.getAttribute("aria-pressed") !== "true";
  button.setAttribute("aria-pressed", String(pressed));
  for (const card of cards) showHeat(card, pressed);
  if (pressed) say("Red speaks for the class, blue against it.");
}

// The dialog of one picture

let opened = null; // the id of the picture in the dialog, and its card

function openPicture(pictureId, element) {
  const home = state.classes.find((entry) => entry.pictures.some((picture) => picture.id === pictureId));
  const picture = (home?.pictures ?? state.to_classify).find((candidate) => candidate.id === pictureId);
  opened = { pictureId, card: element.closest("li") };
  find("picture-name").textContent = picture.name;
  find("picture-large").src = thumbnailOf(pictureId);
  renderChoices(state, home?.id ?? "");
  find("picture-dialog").showModal();
}

find("picture-choices").addEventListener("click", (event) => {
  const choice = event.target.closest("button");
  if (!choice) return;
  find("picture-dialog").close();
  keepPlace(opened.card, () => movePicture(opened.pictureId, choice.dataset.choice || null));
});

find("picture-remove").addEventListener("click", () => {
  find("picture-dialog").close();
  keepPlace(opened.card, () => removePicture(opened.pictureId));
});

// Classes

find("add-class").addEventListener("submit", async (event) => {
  event.preventDefault();
  const input = find("new-class");
  const name = input.value.trim();
  if (await change("POST", "/api/classes", { name }, `Class ${name} added. Now add some pictures to it.`)) input.value = "";
  input.focus();
});

async function renameClass(input) {
  const path = `/api/classes/${input.closest(".class").dataset.drop}`;
  if (!(await change("PATCH", path, { name: input.value }, "Class renamed."))) input.value = input.dataset.saved;
}

document.addEventListener("keydown", (event) => {
  if (!event.target.matches(".class-name")) return;
  if (event.key === "Escape") event.target.value = event.target.dataset.saved;
  if (event.key === "Enter" || event.key === "Escape") event.target.blur();
});

async function removeClass(classId) {
  const entry = state.classes.find((candidate) => candidate.id === classId);
  const count = entry.pictures.length;
  if (count && !(await confirm(`Remove “${entry.name}” with ${plural(count, "picture")}?`, "Remove class"))) return;
  await change("DELETE", `/api/classes/${classId}`, undefined, `Class ${entry.name} removed.`);
  find("classes-title").focus();
}

// Everything

function confirm(question, yes) {
  const dialog = find("confirm-dialog");
  find("confirm-text").textContent = question;
  find("confirm-yes").textContent = yes;
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}

const isEmpty = () => state.classes.length === 0 && state.to_classify.length === 0;

async function replaceAll(question, progress, action) {
  if (!isEmpty() && !(await confirm(question, "Replace"))) return;
  showProgress(progress);
  await action();
  showProgress(null);
}

async function loadExample() {
  await replaceAll("Replace your classes and pictures with the example?", "Drawing the example", () =>
    change("POST", "/api/example", undefined, "Example loaded."));
}

find("load-example").addEventListener("click", loadExample);
find("welcome-example").addEventListener("click", async () => {
  await loadExample();
  find("questions-title").focus();
});

find("open-classifier").addEventListener("change", async (event) => {
  const [file] = event.target.files;
  event.target.value = "";
  find("files-menu").open = false;
  if (!file) return;
  if (file.size > limits.classifier_bytes) {
    showProblems("This did not work", [`${file.name} is too large for a saved classifier.`]);
    return;
  }
  await replaceAll("Replace your classes and pictures with the saved ones?", `Opening ${file.name}`, () =>
    change("POST", "/api/classifier", file, `${file.name} is open.`));
});

find("start-over").addEventListener("click", async () => {
  if (await confirm("Remove all classes and pictures?", "Start over")) {
    await change("DELETE", "/api/state", undefined, "All classes and pictures removed.");
  }
});

find("problems-close").addEventListener("click", () => {
  showProblems("", []);
  find("main").focus();
});

// The token is stored in a cookie by now, so remove it from the address.
if (location.search) history.replaceState(null, "", location.pathname);
refresh().catch((error) => showProblems("The page could not be loaded", [error.message]));
