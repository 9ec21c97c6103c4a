// Pieces that several views are made of.

import { h, Fragment, useEffect, useState } from "./react.js";
import { Alert, Badge, Button, Code, Heading, Link, Progress, Spinner, table } from "./kit.js";

// The word is always beside the colour.
const TONES = {
  behind: "warning", blocked: "warning", catching_up: "info", failed: "error", given_up: "error", lost: "error",
  running: "success", snapshotting: "info", starting: "info",
};

export const NEEDS_ATTENTION = new Set(["failed", "lost", "blocked"]);

export const Status = ({ status }) =>
  h(Badge, { solid: NEEDS_ATTENTION.has(status), tone: TONES[status] ?? "muted" },
    h("span", { "aria-hidden": true, className: "df-dot" }), status.replaceAll("_", " "));

export const Muted = ({ children, ...more }) => h("span", { ...more, className: "df-muted" }, children);

export const Row = ({ apart, children, end }) =>
  h("div", { className: `df-row${apart ? " df-apart" : ""}${end ? " df-end" : ""}` }, children);

export const Stack = ({ children, narrow }) => h("div", { className: `df-stack${narrow ? " df-narrow" : ""}` }, children);

export const Section = ({ aside, children, title }) =>
  h("section", { "aria-label": title, className: "df-section" },
    h(Row, { apart: true }, h(Heading, { level: 3 }, title), aside && h("div", { className: "df-row" }, aside)), children);

export const Figure = ({ label, note, value }) =>
  h("div", { className: "df-figure" }, h(Muted, null, label), h("strong", null, value), note && h(Muted, null, note));

export const Bar = ({ label, moving = false, part, tone }) =>
  h(Progress, { label, moving, tone, value: Math.max(0, Math.min(1, part)) });

// `text` with the words between backticks as code, as errors and advice are written.
export const Words = ({ text }) =>
  h(Fragment, null, ...text.split("`").map((part, index) => (index % 2 ? h(Code, { key: index }, part) : part)));

export const Command = ({ children, label }) =>
  h("pre", { "aria-label": label, className: "df-pre", tabIndex: 0 }, children);

// On a narrow screen each row becomes a card, and each cell shows its column's name. A browser takes what
// is laid out so for no table any more, unless the roles say that it is one.
const layoutOf = ({ right, wide }) => (right ? "df-right" : wide ? "df-wide" : undefined);

// A column without a name holds buttons, and is there if any row has one.
export const Grid = ({ columns: possible, empty, label, rows: all }) => {
  if (all.length === 0) return h("p", { className: "df-muted" }, empty);
  const kept = possible.map(({ name }, index) => name !== "" || all.some(({ cells }) => cells[index]));
  const columns = possible.filter((_, index) => kept[index]);
  const rows = all.map((row) => ({ ...row, cells: row.cells.filter((_, index) => kept[index]) }));
  return h("div", { className: "df-grid" },
    h(table.Root, { "aria-label": label, role: "table" },
      h(table.Head, { role: "rowgroup" }, h(table.Row, { role: "row" }, columns.map((column) =>
        h(table.Column, { className: layoutOf(column), key: column.name, role: "columnheader", scope: "col" }, column.name)))),
      h(table.Body, { role: "rowgroup" }, rows.map(({ cells, key, ...row }) =>
        h(table.Row, { key, role: "row", ...row }, cells.map((cell, index) =>
          h(table.Cell, { className: layoutOf(columns[index]), "data-label": columns[index].name,
            key: columns[index].name, role: "cell" }, cell ?? (columns[index].name ? "–" : null))))))));
};

export const Pairs = ({ pairs }) =>
  h("dl", { className: "df-pairs" }, pairs.map(([name, value]) =>
    h(Fragment, { key: name }, h("dt", null, name), h("dd", null, value))));

export const Field = ({ children, hint, label }) =>
  h("label", { className: "df-field" }, h("span", { className: "df-strong" }, label), children, hint && h(Muted, null, hint));

// A link to another view of this page: `open` does without loading it anew.
export const ViewLink = ({ children, href, open, ...more }) =>
  h(Link, { ...more, href, onClick: (event) => {
    if (event.metaKey || event.ctrlKey || event.shiftKey || event.button) return;
    event.preventDefault();
    event.stopPropagation();
    open();
  } }, children);

const SLOW_AFTER_MS = 4000;

export const Loading = () => {
  const [slow, setSlow] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setSlow(true), SLOW_AFTER_MS);
    return () => clearTimeout(timer);
  }, []);
  return h("div", { "aria-live": "polite", className: "df-row df-loading", role: "status" }, h(Spinner, null),
    h(Muted, null, slow ? "Still waiting for an answer. The state store may be slow or away." : "Loading"));
};

const TITLES = {
  FORBIDDEN: "You may not do this", NO_ANSWER: "The server does not answer", PIPELINE_NOT_FOUND: "No such pipeline",
  SLOW: "The server takes long", TRY_AGAIN: "The state store, or a server, is away",
};
const HINTS = {
  NO_ANSWER: "This page asks again every two seconds.",
  SLOW: "This page asks on.",
  TRY_AGAIN: "This page asks again every two seconds. Drivers are not stopped by this; they wait at their next checkpoint until the store answers.",
};

// Why something cannot be shown, or shown as it is now.
export const Trouble = ({ error, stale }) => {
  const title = TITLES[error.code] ?? (error.status === 403 ? TITLES.FORBIDDEN : "This cannot be shown");
  return h(Alert, { title: stale ? `${title}; what is below is old` : title, tone: error.status === 404 ? "warning" : "error" },
    h("p", null, h(Words, { text: error.message })), HINTS[error.code] && h("p", null, HINTS[error.code]));
};

// A change that was refused, in the words of the API.
export const Refusal = ({ error }) =>
  error && h(Alert, { title: TITLES[error.code], tone: "error" }, h("div", { className: "df-lines" }, h(Words, { text: error.message })));

// What an answer brings, or why it does not.
export const Answered = ({ answer, children }) => {
  const { data, error } = answer;
  if (data === null) return error ? h(Trouble, { error }) : h(Loading, null);
  return h(Fragment, null, error && h(Trouble, { error, stale: true }), children(data));
};

export const ShowMore = ({ all, count, setAll }) =>
  h("div", null, h(Button, { inList: true, onClick: () => setAll(!all) }, all ? "Show fewer" : `Show all ${count}`));
