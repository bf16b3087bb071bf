// Sends pictures to the server, two at a time. If the connection is lost, it waits and goes on.

import { randomId, request, upload } from "./api.js";
import { isLost, suspect, whenBack } from "./connection.js";
import { plural, say, showProblems, showProgress } from "./messages.js";

const LANES = 2;
const REFRESH_AFTER = 1500; // milliseconds, so that the first answers appear while the rest is sent
const MOST_TRIES = 3;
const NONE_OF_THESE = "none of these";

let queue = Promise.resolve();
let waiting = 0;

/** Whether pictures have yet to be sent: the page must not be closed. */
export const isUploading = () => waiting > 0;

/**
 * Add pictures. `files` are { file, folder } with `classId` (null to classify it) or `className`, a class that is made
 * if there is none of that name. `others` is the number of files that were left out before.
 */
export function addPictures(files, { page, others = 0 }) {
  if (!files.length && !others) return;
  waiting += files.length;
  queue = queue.then(() => new Upload(files, page, others).run()).finally(() => { waiting -= files.length; });
}

class Upload {
  constructor(files, page, others) {
    Object.assign(this, { files, page, others, batch: randomId(), problems: [], added: 0, done: 0, stopped: false });
    this.refreshed = Date.now();
  }

  async run() {
    this.show();
    try {
      await this.makeClasses();
      const jobs = this.files.map((entry, place) => ({ ...entry, place, pictureId: randomId() }));
      await Promise.all(Array.from({ length: LANES }, () => this.lane(jobs)));
    } catch (error) {
      this.problems.push(error.message);
    }
    showProgress(null);
    await this.page.refresh().catch((error) => this.problems.push(error.message));
    this.report();
  }

  show() {
    const text = isLost() ? "Waiting for the server" : `Reading picture ${Math.min(this.done + 1, this.files.length)} of ${this.files.length}`;
    showProgress(text, this.done, this.files.length, () => { this.stopped = true; });
  }

  /** Give each picture the id of its class. */
  async makeClasses() {
    const ids = this.page.idsOfClasses();
    for (const entry of this.files) {
      const name = entry.className?.trim().slice(0, this.page.state().limits.name_length);
      if (!name || name.toLowerCase() === NONE_OF_THESE) continue; // it is classified
      if (!ids.has(name.toLowerCase())) ids.set(name.toLowerCase(), await this.makeClass(name));
      entry.classId = ids.get(name.toLowerCase());
    }
  }

  async makeClass(name) {
    try {
      return (await this.patiently(() => request("POST", `/api/classes?batch=${this.batch}`, { name }))).added;
    } catch (error) {
      await this.page.refresh(); // it may have been made just before the connection was lost
      const found = this.page.idsOfClasses().get(name.toLowerCase());
      if (!found) throw error;
      return found;
    }
  }

  async lane(jobs) {
    while (jobs.length && !this.stopped) {
      const job = jobs.shift();
      try {
        await this.send(job);
        this.added += 1;
      } catch (error) {
        const { name } = job.file;
        this.problems[job.place] = error.message.startsWith(name) ? error.message : `${name}: ${error.message}`;
        if ([404, 409, 507].includes(error.status)) this.stopped = true; // the remaining files would fail, too
      }
      this.done += 1;
      this.show();
      if (Date.now() - this.refreshed > REFRESH_AFTER) await this.refresh();
    }
  }

  async refresh() {
    this.refreshed = Date.now();
    await this.page.refresh().catch(() => {});
    this.refreshed = Date.now();
  }

  async send({ file, folder, classId, pictureId }) {
    const most = this.page.state().limits.file_bytes;
    if (file.size > most) {
      throw new Error(`This file has ${(file.size / 2 ** 20).toFixed(1)} MB. At most ${most / 2 ** 20} MB are accepted.`);
    }
    // Read the file first: otherwise one that cannot be read would look like a lost connection.
    const content = await file.arrayBuffer().catch(() => {
      throw new Error("This file cannot be read. Is it a folder, or was it moved?");
    });
    const facts = { name: file.name, folder, classId, pictureId, batch: this.batch };
    await this.patiently(() => upload(new Blob([content]), facts));
  }

  /** Try again while the connection is lost. */
  async patiently(action) {
    for (let tries = 1; ; tries += 1) {
      try {
        return await action();
      } catch (error) {
        if (!error.lost || this.stopped) throw error;
        const there = await suspect();
        if (there && tries >= MOST_TRIES) throw error;
        this.show();
        await whenBack();
      }
    }
  }

  report() {
    const missing = this.files.length - this.added;
    const problems = this.problems.filter(Boolean); // in the order of the files
    if (this.stopped && !problems.length) say(`Stopped. ${plural(this.added, "picture")} added.`);
    if (this.others) problems.push(`${plural(this.others, "file is no picture", "files are no pictures")}.`);
    if (problems.length) showProblems(`${plural(missing + this.others, "file")} left out`, problems);
    else showProblems("", []);
    if (!this.added || this.stopped) return;
    const target = this.page.nameOf(this.files[0].classId);
    const same = this.files.every((entry) => entry.classId === this.files[0].classId);
    say(`${plural(this.added, "picture")} added${target && same ? ` to ${target}` : ""}.`);
  }
}
