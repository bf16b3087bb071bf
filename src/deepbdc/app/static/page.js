// Reacts to what the person does. The server keeps the state; the page shows the state in each response.

import { download, isBusy, request } from "./api.js";
import { watchCamera } from "./camera.js";
import { showHeat } from "./cards.js";
import { renderChecking, watchChecking } from "./checking.js";
import { isLost, noteServer, watchConnection } from "./connection.js";
import { watchDragging } from "./dragging.js";
import { chosenFiles, classesIn, picturesAmong } from "./folders.js";
import { ask, confirm, plural, say, showLost, showProblems, showProgress } from "./messages.js";
import { openPicture as openDialog, watchPicture } from "./picture.js";
import { advance, renderReview, watchReview } from "./review.js";
import { addPictures, isUploading } from "./uploading.js";
import { NONE, renderFrame } from "./view.js";

const find = (id) => document.getElementById(id);
let state = null;
let fixed = {}; // what only the first response tells: the limits, and where the work is kept

function show(answer) {
  if (answer.limits) fixed = { limits: answer.limits, kept: answer.kept };
  if (answer.server) noteServer(answer.server);
  state = { ...answer, ...fixed };
  renderFrame(state);
  renderReview(state);
  renderChecking(state);
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

const nameOf = (classId) => state.classes.find((entry) => entry.id === classId)?.name;
const idsOfClasses = () => new Map(state.classes.map((entry) => [entry.name.toLowerCase(), entry.id]));
const page = { state: () => state, refresh, nameOf, idsOfClasses };

// Adding pictures

/** Add files of a drop or a choice: to a class, to classify ("" or null), or as new classes ("new"). */
async function addFiles(files, target) {
  const { pictures, others } = picturesAmong(files);
  if (!pictures.length) {
    if (others) showProblems("Nothing was added", ["There are no pictures in this folder."]);
    return;
  }
  if (target !== "new" && target) {
    addPictures(pictures.map((entry) => ({ ...entry, classId: target })), { page, others });
    return;
  }
  const found = classesIn(pictures);
  const wanted = found.classes.length ? await askAboutFolders(found, target, pictures.length) : target === "new" ? "files" : "all";
  if (wanted === "files") showProblems("Nothing was added", ["Drop pictures onto a class, or below it to classify them. A folder dropped here becomes a class."]);
  if (wanted === "all") addPictures(pictures.map((entry) => ({ ...entry, classId: null })), { page, others });
  if (wanted === "classes") {
    const examples = found.classes.flatMap(({ name, pictures: inside }) => inside.map((entry) => ({ ...entry, className: name })));
    addPictures([...examples, ...found.outside.map((entry) => ({ ...entry, classId: null }))], { page, others });
  }
}

/** Ask whether folders are classes or hold pictures to classify. A plain folder says so by where it was dropped. */
async function askAboutFolders({ classes, outside, top, nested }, target, count) {
  if (classes.length === 1 && !nested) return target === "new" ? "classes" : "all";
  const lines = classes.slice(0, 8).map(({ name, pictures }) => `${name}: ${plural(pictures.length, "picture")}`);
  if (classes.length > 8) lines.push(`and ${plural(classes.length - 8, "more folder")}`);
  if (outside.length) lines.push(`${plural(outside.length, "picture")} in no subfolder, to be classified`);
  const question = nested ? `“${top}” has ${plural(classes.length, "subfolder")}. What are they?` : `These are ${classes.length} folders. What are they?`;
  const answers = [["all", `Classify all ${count}`, target === "new" ? "" : "primary"],
    ["classes", classes.length === 1 ? "Examples of a class" : `Examples of ${classes.length} classes`, target === "new" ? "primary" : ""]];
  return ask(question, answers, lines);
}

document.addEventListener("change", (event) => {
  const input = event.target;
  if (input.matches("input[type=file][data-class]")) {
    addFiles(chosenFiles(input), input.dataset.class);
    input.value = "";
  } else if (input.matches(".class-name")) {
    renameClass(input);
  }
});

document.addEventListener("paste", (event) => {
  const files = event.clipboardData?.files ?? [];
  if (!files.length) return;
  event.preventDefault();
  const target = document.activeElement?.closest(".class")?.dataset.drop ?? "";
  addFiles([...files].map((file) => ({ file, folder: "" })), target);
});

watchDragging({ addFiles, movePicture });
watchCamera({
  addFile: (file, classId) => addFiles([{ file, folder: "" }], classId),
  places: () => [{ id: "", name: "Pictures to classify" }, ...state.classes],
});

// Pictures

/** Move a picture into a class; to the pictures to classify (""), or say that it shows none of the classes ("none"). */
async function movePicture(pictureId, target) {
  if (target === NONE) {
    await judge([pictureId], NONE, "It shows none of these. Nothing is learnt from it.");
  } else if (target === "" && state.to_classify.some((entry) => entry.id === pictureId)) {
    await judge([pictureId], null, "Not checked any more.");
  } else {
    const place = target === "" ? "the pictures to classify" : nameOf(target);
    await change("PATCH", `/api/pictures/${pictureId}`, { class_id: target || null }, `Moved to ${place}. All answers are updated.`);
  }
}

const judge = (pictures, verdict, done) => change("POST", "/api/verdicts", { pictures, verdict }, done);

function confirmAnswers(pictures, verdict) {
  return judge(pictures, verdict, verdict === null ? "Not checked any more." : `${plural(pictures.length, "answer")} confirmed.`);
}

async function removePicture(pictureId) {
  await change("DELETE", `/api/pictures/${pictureId}`, undefined, "Picture removed.");
}

/** Remove several pictures. With the same batch, they are undone together. */
async function removePictures(pictures, batch) {
  for (const id of pictures) {
    if (!(await change("DELETE", `/api/pictures/${id}?batch=${batch}`))) return;
  }
  say(`${plural(pictures.length, "picture")} removed. Undo brings ${pictures.length === 1 ? "it" : "them"} back.`);
}

const openPicture = (pictureId, element) => openDialog(state, pictureId, element);

/** Run an action that may remove an element of a list. If it does, move the focus to the next one. */
async function keepPlace(element, action) {
  if (element.matches(".question")) {
    await advance(element, action);
    return;
  }
  const list = element.closest("ul");
  const place = [...list.children].indexOf(element);
  await action();
  if (element.isConnected) return;
  (list.children[Math.min(place, list.children.length - 1)]?.querySelector("button") ?? find("classes-title")).focus();
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button, a");
  const card = button?.closest(".question");
  if (button?.matches(".heat-toggle")) toggleHeat([card], button);
  else if (button?.matches(".question .check")) toggleCheck(card, button);
  else if (button?.matches(".question .remove")) keepPlace(card, () => removePicture(card.dataset.picture));
  else if (button?.matches(".remove-class")) removeClass(button.closest(".class").dataset.drop);
  else if (button?.matches(".give-label")) advance(card, () => movePicture(card.dataset.picture, button.dataset.label));
  else if (button?.matches(".question .move")) openPicture(card.dataset.picture, card);
  else if (button?.matches(".thumb button")) openPicture(button.dataset.picture, button);
  else if (button?.getAttribute("aria-disabled") === "true") event.preventDefault();
  else if (button?.matches("a[download]")) saveFile(event, button);
  else if (event.target.closest(".is-grid .question figure")) openPicture(event.target.closest(".question").dataset.picture, event.target);
  if (!event.target.closest("#files-menu summary, #files-menu .choose")) find("files-menu").open = false;
});

async function toggleCheck(card, button) {
  await confirmAnswers([card.dataset.picture], button.getAttribute("aria-pressed") === "true" ? null : "confirm");
}

watchPicture({ move: movePicture, remove: removePicture, keepPlace });
watchChecking({
  move: movePicture,
  refresh,
  remove: removePictures,
  keep: (pictures, finding) => change("POST", "/api/kept", { pictures, finding }, "Kept. The check will not name it again."),
});
watchReview({ confirm: confirmAnswers, move: movePicture, remove: removePicture, open: openPicture });

find("all-heat").addEventListener("click", (event) => {
  toggleHeat([...find("question-list").children], event.currentTarget);
});

function toggleHeat(cards, button) {
  const pressed = button.getAttribute("aria-pressed") !== "true";
  button.setAttribute("aria-pressed", String(pressed));
  for (const card of cards) showHeat(card, pressed);
  if (pressed) say("Red speaks for the class, blue against it.");
}

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

async function removeClass(classId) {
  const entry = state.classes.find((candidate) => candidate.id === classId);
  await change("DELETE", `/api/classes/${classId}`, undefined, `Class ${entry.name} removed. Undo brings it back.`);
  find("classes-title").focus();
}

document.addEventListener("keydown", (event) => {
  if (event.target.matches(".class-name")) {
    if (event.key === "Escape") event.target.value = event.target.dataset.saved;
    if (event.key === "Enter" || event.key === "Escape") event.target.blur();
  }
  const typing = event.target.matches("input, select, textarea") || document.querySelector("dialog[open]");
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "z" && !event.shiftKey && !typing) {
    event.preventDefault();
    undo();
  }
});

// Everything

async function undo() {
  if (state.undo) await change("POST", "/api/undo", undefined, `Undone: ${state.undo}.`);
}

find("undo").addEventListener("click", undo);

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
  if (file.size > state.limits.classifier_bytes) {
    showProblems("This did not work", [`${file.name} is too large for a saved classifier.`]);
    return;
  }
  await replaceAll("Replace your classes and pictures with the saved ones?", `Opening ${file.name}`, () =>
    change("POST", "/api/classifier", file, `${file.name} is open.`));
});

find("start-over").addEventListener("click", () => {
  change("DELETE", "/api/state", undefined, "All classes and pictures removed. Undo brings them back.");
});

find("forget").addEventListener("click", async () => {
  const question = "Delete all your classes and pictures from this computer? This cannot be undone.";
  if (await confirm(question, "Delete everything")) {
    await change("DELETE", "/api/work", undefined, "Everything is deleted.");
    find("main").focus();
  }
});

find("files-menu").addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  find("files-menu").open = false;
  find("files-menu").querySelector("summary").focus();
});

/** Let the browser save a file. One that takes long to make is fetched first, so that errors can be shown. */
async function saveFile(event, link) {
  if (isLost()) {
    event.preventDefault();
    showProblems("This did not work", ["There is no connection to the server."]);
  }
  if (!link.dataset.slow || isLost()) return;
  event.preventDefault();
  showProgress(link.dataset.slow);
  try {
    const address = URL.createObjectURL(await download(link.getAttribute("href")));
    Object.assign(document.createElement("a"), { href: address, download: link.download }).click();
    setTimeout(() => URL.revokeObjectURL(address), 60000);
  } catch (error) {
    showProblems("This did not work", [error.message]);
  }
  showProgress(null);
}

// The connection, and closing the page

const isTyping = () => document.activeElement?.matches(".class-name") && document.activeElement.value !== document.activeElement.dataset.saved;

window.addEventListener("beforeunload", (event) => {
  if (isUploading() || isBusy() || isTyping()) event.preventDefault();
});

const connection = {
  onLost: (reason) => showLost(reason, state?.kept.days > 0),
  async onBack(restarted) {
    showLost(null);
    await refresh().catch(() => {});
    if (!restarted) say("The connection is there again.");
    else say(state.kept.days ? "The server was restarted. Your work is here again." : "The server was restarted.");
  },
};

// The token is stored in a cookie by now, so remove it from the address.
if (location.search) history.replaceState(null, "", location.pathname);
refresh()
  .catch((error) => showProblems("The page could not be loaded", [error.message]))
  .finally(() => watchConnection(connection, state?.server ?? null));
