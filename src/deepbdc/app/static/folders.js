// Folders that a person drops or chooses: which pictures they hold, and which classes their subfolders could be.

const PICTURE = /\.(jpe?g|jfif|png|webp|gif|bmp|tiff?|avif|ppm|pgm|heic|heif|mpo)$/i;
const MOST_FILES = 20000;

/** Files with the folder that each is in ("" for none), from what was dropped. Call it before the event ends. */
export function droppedFiles(transfer) {
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  if (!entries.some((entry) => entry.isDirectory)) {
    return Promise.resolve([...transfer.files].map((file) => ({ file, folder: "" })));
  }
  return readAll(entries);
}

/** The same from an input for files or for a folder. */
export function chosenFiles(input) {
  return [...input.files].map((file) => ({ file, folder: folderOf(file.webkitRelativePath ?? "") }));
}

const folderOf = (path) => path.split("/").slice(0, -1).join("/");

async function readAll(entries) {
  const found = [];
  const waiting = entries.map((entry) => [entry, ""]);
  while (waiting.length && found.length < MOST_FILES) {
    const [entry, folder] = waiting.shift();
    if (entry.isFile) {
      const file = await new Promise((resolve) => entry.file(resolve, () => resolve(null)));
      if (file) found.push({ file, folder });
    } else {
      const path = folder ? `${folder}/${entry.name}` : entry.name;
      for (const inner of await contents(entry.createReader())) waiting.push([inner, path]);
    }
  }
  return found;
}

async function contents(reader) {
  const found = [];
  for (;;) { // a reader gives a hundred entries at a time
    const some = await new Promise((resolve) => reader.readEntries(resolve, () => resolve([])));
    if (!some.length) return found.sort((one, other) => one.name.localeCompare(other.name, undefined, { numeric: true }));
    found.push(...some);
  }
}

/** Leave out what is no picture, or hidden, of the files in folders. A file that was chosen by itself stays. */
export function picturesAmong(files) {
  const isPicture = ({ file, folder }) =>
    !folder || (PICTURE.test(file.name) && ![...folder.split("/"), file.name].some((part) => part.startsWith(".")));
  return { pictures: files.filter(isPicture), others: files.filter((entry) => !isPicture(entry)).length };
}

/**
 * The classes that folders stand for: [{ name, pictures }], and the pictures outside of them.
 *
 * One folder with subfolders stands for its subfolders; several folders stand for themselves.
 */
export function classesIn(pictures) {
  const paths = pictures.map(({ folder }) => folder.split("/").filter(Boolean));
  const tops = new Set(paths.map((path) => path[0] ?? ""));
  const depth = tops.size === 1 && paths.some((path) => path.length > 1) ? 1 : 0;
  const classes = new Map();
  const outside = [];
  pictures.forEach((picture, place) => {
    const name = paths[place][depth];
    if (name === undefined) outside.push(picture);
    else if (classes.has(name)) classes.get(name).push(picture);
    else classes.set(name, [picture]);
  });
  const found = [...classes].map(([name, inside]) => ({ name, pictures: inside }));
  return { classes: found, outside, top: tops.size === 1 ? [...tops][0] : null, nested: depth === 1 };
}
