// Drag and drop of pictures on the page, and of files and folders. Targets have data-drop: the id of a class, "" to
// classify, "none" for none of these, or "new" for new classes.

import { droppedFiles } from "./folders.js";

const PICTURE = "application/x-deepbdc-picture";

const targetOf = (event) => event.target.closest?.("[data-drop]") ?? null;
const isPicture = (event) => event.dataTransfer.types.includes(PICTURE);
const isFile = (event) => event.dataTransfer.types.includes("Files");

export function watchDragging({ addFiles, movePicture }) {
  let marked = null;
  const mark = (element) => {
    if (marked === element) return;
    marked?.classList.remove("is-target");
    element?.classList.add("is-target");
    marked = element;
  };
  const fits = (event, target) => target && (isFile(event) ? target.dataset.drop !== "none" : target.dataset.drop !== "new");

  document.addEventListener("dragstart", (event) => {
    const source = event.target.closest?.("[data-picture]");
    if (!source) return;
    event.dataTransfer.setData(PICTURE, source.dataset.picture);
    event.dataTransfer.effectAllowed = "move";
    document.body.classList.add("is-dragging");
    source.classList.add("is-dragged");
  });

  document.addEventListener("dragover", (event) => {
    if (!isPicture(event) && !isFile(event)) return;
    event.preventDefault(); // otherwise the browser would open a file that is dropped beside a target
    const target = fits(event, targetOf(event)) ? targetOf(event) : null;
    event.dataTransfer.dropEffect = !target ? "none" : isPicture(event) ? "move" : "copy";
    mark(target);
  });

  document.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) mark(null);
  });

  document.addEventListener("drop", async (event) => {
    if (!isPicture(event) && !isFile(event)) return;
    event.preventDefault();
    mark(null);
    const target = targetOf(event);
    if (!fits(event, target)) return;
    if (isPicture(event)) movePicture(event.dataTransfer.getData(PICTURE), target.dataset.drop);
    else addFiles(await droppedFiles(event.dataTransfer), target.dataset.drop);
  });

  document.addEventListener("dragend", () => {
    mark(null);
    document.body.classList.remove("is-dragging");
    document.querySelectorAll(".is-dragged").forEach((element) => element.classList.remove("is-dragged"));
  });
}
