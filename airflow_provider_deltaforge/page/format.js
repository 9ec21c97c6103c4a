// Numbers, durations and positions as people read them.

const UNITS = [["d", 86400], ["h", 3600], ["min", 60]];

export const number = (value) =>
  value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en-US");

export const bytes = (value) => {
  if (value === null || value === undefined) return "–";
  let [size, unit] = [value, "B"];
  for (const next of ["kB", "MB", "GB", "TB"]) {
    if (size < 1000) break;
    [size, unit] = [size / 1000, next];
  }
  return `${unit === "B" || size >= 100 ? Math.round(size) : size.toFixed(1)} ${unit}`;
};

export const duration = (seconds) => {
  if (seconds === null || seconds === undefined) return "–";
  for (const [unit, length] of UNITS) {
    if (seconds >= 2 * length) return `${Math.round(seconds / length)} ${unit}`;
  }
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  return `${seconds < 10 && seconds % 1 ? seconds.toFixed(1) : Math.round(seconds)} s`;
};

export const milliseconds = (value) =>
  value === null || value === undefined ? "–" : duration(value / 1000);

// A clock that runs a little behind the server's must not show a negative age.
export const age = (sinceMs, nowMs) =>
  sinceMs ? duration(Math.max(1, Math.round((nowMs - sinceMs) / 1000))) : null;

export const ago = (sinceMs, nowMs) => (sinceMs ? `${age(sinceMs, nowMs)} ago` : "–");

// Two beats a second: what is younger is no news.
export const since = (seconds) =>
  seconds === null || seconds === undefined ? "–" : `${duration(Math.max(1, Math.round(seconds)))} ago`;

export const moment = (ms) => (ms ? new Date(ms).toLocaleString() : "–");

export const rate = (perSecond) => {
  if (perSecond === null || perSecond === undefined) return "–";
  return `${perSecond > 0 && perSecond < 10 ? perSecond.toFixed(1) : number(perSecond)} /s`;
};

export const position = (value) => {
  if (!value) return "–";
  return Object.entries(value)
    .filter(([, part]) => part !== null && part !== "")
    .map(([key, part]) => `${key} ${typeof part === "object" ? JSON.stringify(part) : part}`)
    .join(" · ");
};

export const plural = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`;
