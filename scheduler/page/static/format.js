// Numbers and times in words.

let ahead = 0; // milliseconds by which the server's clock is ahead of ours

/** Take the server's time, so that ages are right on a machine with a wrong clock. */
export function setServerTime(text) {
  ahead = Date.parse(text) - Date.now();
}

export const gib = (mib) => (mib / 1024).toFixed(mib % 1024 === 0 ? 0 : 1);
export const percent = (ratio) => `${Math.round(100 * ratio)} %`;
export const plural = (count, one, many = `${one}s`) => `${count} ${count === 1 ? one : many}`;

/** Return a time of day; with the date if it was not today. */
export function clock(text) {
  const at = new Date(text);
  const day = at.toDateString() === new Date().toDateString() ? "" : `${at.toLocaleDateString()} `;
  return `${day}${at.toLocaleTimeString([], { hour12: false })}`;
}

/** Return how long ago something was: "12 s", "3 min", "2 h", "5 d". */
export function age(text) {
  const seconds = Math.max(0, (Date.now() + ahead - Date.parse(text)) / 1000);
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 129600) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}
