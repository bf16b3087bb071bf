// Messages to the person: short remarks, progress, problems, questions, and whether the work is saved.

const find = (id) => document.getElementById(id);

export const plural = (count, word, many = `${word}s`) => `${count} ${count === 1 ? word : many}`;

export function say(text) {
  const status = find("status");
  status.textContent = text;
  status.classList.add("is-shown");
  clearTimeout(say.timer);
  say.timer = setTimeout(() => status.classList.remove("is-shown"), 5000);
}

/** Show what is going on; null hides it. With `stop`, a button calls it. */
export function showProgress(text, done, all, stop) {
  const bar = find("progress-bar");
  find("progress").hidden = text === null;
  find("main").setAttribute("aria-busy", String(text !== null));
  find("progress-stop").hidden = !stop;
  find("progress-stop").onclick = stop ?? null;
  if (text === null) return;
  find("progress-text").textContent = text;
  if (all) Object.assign(bar, { max: all, value: done });
  else bar.removeAttribute("value");
}

export function showProblems(title, problems) {
  find("problems").hidden = problems.length === 0;
  find("problems-title").textContent = title;
  find("problems-list").replaceChildren(...problems.map((text) => {
    const entry = document.createElement("li");
    entry.textContent = text;
    return entry;
  }));
}

find("problems-close").addEventListener("click", () => {
  showProblems("", []);
  find("main").focus();
});

/** Tell that the connection is lost; null hides it. */
export function showLost(reason, lasting) {
  find("lost").hidden = reason === null;
  document.body.classList.toggle("is-lost", reason !== null);
  if (reason === null) return;
  find("lost-text").textContent = reason || (lasting
    ? "Everything up to now is saved. Start ‘deepbdc app’ again in the terminal, and this page goes on by itself."
    : "Is ‘deepbdc app’ still running? This page tries again by itself.");
}

/**
 * Ask a question. `answers` are [value, text, kind] of the buttons. Resolves to the value of the chosen one, or null.
 * `details` are lines that explain the question.
 */
export function ask(question, answers, details = []) {
  const dialog = find("confirm-dialog");
  find("confirm-text").textContent = question;
  find("confirm-details").replaceChildren(...details.map((text) => {
    const entry = document.createElement("li");
    entry.textContent = text;
    return entry;
  }));
  find("confirm-details").hidden = details.length === 0;
  find("confirm-actions").replaceChildren(...[["", "Cancel", ""], ...answers].map(([value, text, kind]) => {
    const button = document.createElement("button");
    Object.assign(button, { value, textContent: text, className: kind });
    return button;
  }));
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue || null), { once: true });
  });
}

export const confirm = async (question, yes) => (await ask(question, [["yes", yes, "danger"]])) === "yes";
