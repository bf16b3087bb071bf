// Requests to the server. A request that fails throws an Error whose message can be shown to the person.

const OWN_HEADERS = { "X-Deepbdc": "1" };

export async function request(method, path, body) {
  const options = { method, headers: { ...OWN_HEADERS } };
  if (body instanceof Blob) {
    options.body = body;
    options.headers["Content-Type"] = "application/octet-stream";
  } else if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers["Content-Type"] = "application/json";
  }
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new Error("The server does not answer. Is ‘deepbdc app’ still running?");
  }
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) {
    const error = new Error(answer.error || `The server answered with error ${response.status}.`);
    error.status = response.status;
    throw error;
  }
  return answer;
}

export function upload(file, classId) {
  const query = new URLSearchParams({ name: file.name });
  if (classId) query.set("class_id", classId);
  return request("POST", `/api/pictures?${query}`, file);
}

export const thumbnailOf = (pictureId) => `/api/pictures/${pictureId}/thumbnail`;
export const heatOf = (pictureId, lesson) => `/api/pictures/${pictureId}/heat?lesson=${lesson}`;
export const nearestOf = (pictureId) => request("GET", `/api/pictures/${pictureId}/nearest`);
