// The pictures to label next: those whose labels would teach most. The server chooses them.

import { request } from "./api.js";

const MOST = 6; // as many as the server chooses
let chosen = []; // their ids, in the order in which they are shown; also of those that have a label by now, for undo
let round = 0; // counts the requests, so that only the latest answer counts

const isOpen = (picture) => picture.result && !picture.verdict;

/** The pictures that could be labelled: those with an answer that nobody has checked. */
export const openPictures = (state) => state.to_classify.filter(isOpen);

/** The pictures to label next that still have no label. */
export function chosenPictures(state) {
  const open = new Map(openPictures(state).map((picture) => [picture.id, picture]));
  return chosen.filter((id) => open.has(id)).map((id) => open.get(id));
}

/** Begin anew: nothing is chosen. */
export function forgetChosen() {
  chosen = [];
  round += 1;
}

/** Have the server choose as many as are missing. The others stay where they are. Resolves to whether that is news. */
export async function chooseMore(state) {
  const stay = chosenPictures(state).map(({ id }) => id);
  if (stay.length >= Math.min(MOST, openPictures(state).length)) return false;
  round += 1;
  const mine = round;
  const query = new URLSearchParams(stay.map((id) => ["beside", id]));
  const { pictures } = await request("GET", `/api/suggestions?${query}`);
  if (mine !== round) return false; // a newer request is under way
  chosen = [...chosen, ...pictures.filter((id) => !chosen.includes(id))];
  return true;
}
