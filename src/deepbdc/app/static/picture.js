// The dialog of one picture: it is shown large, with its answer, and can be moved or removed.

import { thumbnailOf } from "./api.js";
import { describeAnswer } from "./cards.js";
import { renderChoices, shortName } from "./view.js";

const find = (id) => document.getElementById(id);
let opened = null; // the id of the picture in the dialog, and its card

/** Open the dialog. `element` is in the card or entry of the picture, where the focus returns to. */
export function openPicture(state, pictureId, element) {
  const home = state.classes.find((entry) => entry.pictures.some((picture) => picture.id === pictureId));
  const picture = (home?.pictures ?? state.to_classify).find((candidate) => candidate.id === pictureId);
  opened = { pictureId, card: element.closest("li") };
  find("picture-name").textContent = shortName(picture.name);
  find("picture-large").src = thumbnailOf(pictureId);
  find("picture-answer").textContent = home ? "" : describeAnswer(picture, state);
  find("picture-answer").hidden = !find("picture-answer").textContent;
  renderChoices(state, home?.id ?? "", picture.verdict);
  find("picture-dialog").showModal();
}

/** `act` are move(pictureId, target), remove(pictureId), and keepPlace(card, action), which also moves the focus. */
export function watchPicture(act) {
  const choose = (target) => {
    find("picture-dialog").close();
    act.keepPlace(opened.card, () => act.move(opened.pictureId, target));
  };
  find("picture-choices").addEventListener("click", (event) => {
    const choice = event.target.closest("button");
    if (choice) choose(choice.dataset.choice);
  });
  find("picture-dialog").addEventListener("keydown", (event) => {
    const choice = [...find("picture-choices").children].find((button) => button.querySelector(".key").textContent === event.key);
    if (choice && !choice.disabled) choose(choice.dataset.choice);
  });
  find("picture-remove").addEventListener("click", () => {
    find("picture-dialog").close();
    act.keepPlace(opened.card, () => act.remove(opened.pictureId));
  });
}
