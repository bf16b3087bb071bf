// Requests to the server. A request that fails throws an Error whose message can be shown to the person.

import { suspect } from "./connection.js";

const OWN_HEADERS = { "X-Deepbdc": "1" };
let underWay = 0;

export const isBusy = () => underWay > 0;

export async function request(method, path, body) {
  const options = { method, headers: { ...OWN_HEADERS } };
  if (body instanceof Blob) {
    options.body = body;
    options.headers["Content-Type"] = "application/octet-stream";
  } else if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers["Content-Type"] = "application/json";
  }
  const changes = method !== "GET";
  underWay += changes;
  try {
    return await answerOf(await send(path, options));
  } finally {
    underWay -= changes;
  }
}

async function send(path, options) {
  try {
    return await fetch(path, options);
  } catch {
    const error = new Error("The server did not answer, so this was not done. Try it again.");
    error.lost = true;
    suspect();
    throw error;
  }
}

async function answerOf(response) {
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) {
    const error = new Error(answer.error || `The server answered with error ${response.status}.`);
    error.status = response.status;
    throw error;
  }
  return answer;
}

/** Send a picture. With the same pictureId it is added once, however often it is sent. */
export function upload(content, { name, folder, classId, pictureId, batch }) {
  const query = new URLSearchParams({ name, picture_id: pictureId, batch });
  if (folder) query.set("folder", folder);
  if (classId) query.set("class_id", classId);
  return request("POST", `/api/pictures?${query}`, content);
}

/** A file that the server makes, as a Blob. */
export async function download(path) {
  const response = await send(path, { headers: OWN_HEADERS });
  if (!response.ok) await answerOf(response);
  return response.blob();
}

export function randomId() {
  return [...crypto.getRandomValues(new Uint8Array(8))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

export const thumbnailOf = (pictureId) => `/api/pictures/${pictureId}/thumbnail`;
export const heatOf = (pictureId, lesson) => `/api/pictures/${pictureId}/heat?lesson=${lesson}`;
export const nearestOf = (pictureId) => request("GET", `/api/pictures/${pictureId}/nearest`);
