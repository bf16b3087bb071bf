// The camera: it asks for permission, shows the picture, and takes pictures for a class or to classify.

import { plural } from "./messages.js";

const find = (id) => document.getElementById(id);
const REASONS = {
  NotAllowedError: "This page may not use the camera. Allow it in the address bar of your browser, and try again.",
  NotFoundError: "There is no camera on this computer. You can drop, paste or choose pictures instead.",
  NotReadableError: "The camera cannot be used. Does another program use it?",
};
const NOT_SAFE =
  "Browsers give the camera only to pages of the own computer. On a phone, “Choose pictures” offers its camera.";

let stream = null;
let taken = 0;
let giveFile = () => {};

/** `addFile(file, classId)` gets each picture; `places()` are the targets to choose from: [{ id, name }]. */
export function watchCamera({ addFile, places }) {
  giveFile = addFile;
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-camera]");
    if (button) open(button.dataset.camera, places());
  });
  find("camera-take").addEventListener("click", take);
  find("camera-source").addEventListener("change", () => start(find("camera-source").value));
  find("camera-retry").addEventListener("click", () => start());
  find("camera-dialog").addEventListener("close", stop);
}

function open(classId, places) {
  taken = 0;
  find("camera-count").textContent = "";
  find("camera-target").replaceChildren(...places.map(({ id, name }) => new Option(name, id, id === classId, id === classId)));
  find("camera-dialog").showModal();
  start();
}

async function start(deviceId) {
  stop();
  show("Your browser asks whether this page may use the camera.", "asking");
  if (!navigator.mediaDevices?.getUserMedia) {
    show(NOT_SAFE, "failed");
    return;
  }
  try {
    const wanted = deviceId ? { deviceId: { exact: deviceId } } : { facingMode: "environment" };
    const found = await navigator.mediaDevices.getUserMedia({ video: { ...wanted, width: { ideal: 1280 } } });
    if (!find("camera-dialog").open) { // closed meanwhile
      found.getTracks().forEach((track) => track.stop());
      return;
    }
    stream = found;
    stream.getVideoTracks()[0].addEventListener("ended", () => show(REASONS.NotReadableError, "failed"));
    find("camera-video").srcObject = stream;
    await find("camera-video").play();
    await listCameras();
    show("", "ready");
    find("camera-take").focus();
  } catch (error) {
    stop();
    show(REASONS[error.name] ?? `The camera cannot be used (${error.name}).`, "failed");
  }
}

async function listCameras() {
  const devices = (await navigator.mediaDevices.enumerateDevices()).filter((device) => device.kind === "videoinput");
  const current = stream.getVideoTracks()[0].getSettings().deviceId;
  find("camera-source").replaceChildren(...devices.map((device, place) =>
    new Option(device.label || `Camera ${place + 1}`, device.deviceId, false, device.deviceId === current)));
  find("camera-source-field").hidden = devices.length < 2;
}

function show(text, state) {
  find("camera-dialog").dataset.state = state;
  find("camera-status").textContent = text;
  find("camera-status").hidden = !text;
  find("camera-video").hidden = state !== "ready";
  find("camera-take").disabled = state !== "ready";
  find("camera-retry").hidden = state !== "failed" || text === NOT_SAFE;
}

async function take() {
  const video = find("camera-video");
  const canvas = document.createElement("canvas");
  Object.assign(canvas, { width: video.videoWidth, height: video.videoHeight });
  canvas.getContext("2d").drawImage(video, 0, 0);
  const content = await new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", 0.92));
  if (!content) return;
  taken += 1;
  const moment = new Date().toISOString().slice(0, 19).replace("T", " ").replaceAll(":", ".");
  giveFile(new File([content], `camera ${moment} ${taken}.jpg`, { type: "image/jpeg" }), find("camera-target").value);
  find("camera-count").textContent = `${plural(taken, "picture")} taken`;
  video.animate([{ opacity: 0.2 }, { opacity: 1 }], 250);
}

function stop() {
  stream?.getTracks().forEach((track) => track.stop());
  stream = null;
  find("camera-video").srcObject = null;
}
