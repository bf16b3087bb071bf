// Watches whether the server is there. It is asked every two seconds, and at once when a request fails.

const PAUSE = 2000;
const PAUSE_WHEN_LOST = 1000;
const PATIENCE = 20000; // a busy server may answer late; one that is gone refuses at once

let lost = null; // why there is no connection
let server = null; // the number of the server, another one after a restart
let timer = 0;
let asking = null;
let told = { onLost() {}, onBack() {} };
const waiting = [];

export const isLost = () => lost !== null;

/** Call onLost(reason) when the connection is lost, and onBack(restarted) when it is there again. */
export function watchConnection(listeners, number) {
  told = listeners;
  server = number;
  document.addEventListener("visibilitychange", () => document.hidden || suspect());
  window.addEventListener("online", suspect);
  schedule();
}

/** The number of the server in an answer: if it is another one, the state that the page shows is old. */
export function noteServer(number) {
  server = number;
}

/** Look at once whether the server is there. Resolves to whether it is. */
export async function suspect() {
  asking ??= ask().finally(() => { asking = null; });
  return asking;
}

/** Wait until the server is there again. */
export function whenBack() {
  return lost === null ? Promise.resolve() : new Promise((resolve) => waiting.push(resolve));
}

function schedule() {
  clearTimeout(timer);
  timer = setTimeout(() => (document.hidden && lost === null ? schedule() : suspect()), lost === null ? PAUSE : PAUSE_WHEN_LOST);
}

async function ask() {
  const found = await look();
  if (found.number !== undefined) back(found.number);
  else if (lost !== found.reason) {
    lost = found.reason;
    told.onLost(lost);
  }
  schedule();
  return lost === null;
}

async function look() {
  try {
    const response = await fetch("/api/alive", { cache: "no-store", signal: AbortSignal.timeout(PATIENCE) });
    const answer = await response.json();
    return response.ok ? { number: answer.server } : { reason: answer.error };
  } catch {
    return { reason: "" };
  }
}

function back(number) {
  const restarted = server !== null && number !== server;
  if (lost === null && !restarted) return;
  lost = null;
  server = number;
  Promise.resolve(told.onBack(restarted)).finally(() => waiting.splice(0).forEach((resolve) => resolve()));
}
