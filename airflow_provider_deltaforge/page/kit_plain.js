// Components of plain HTML, for a page that nobody lends any; page.css gives them their looks.

import { h, useCallback, useEffect, useId, useRef, useState } from "./react.js";

const classes = (...names) => names.filter(Boolean).join(" ");

export const Alert = ({ children, title, tone = "info" }) =>
  h("div", { className: `df-alert df-${tone}`, role: tone === "error" ? "alert" : "status" },
    title && h("div", { className: "df-strong" }, title), children);

export const Badge = ({ children, solid, tone }) =>
  h("span", { className: classes("df-badge", `df-${tone}`, solid && "df-solid") }, children);

export const Button = ({ busy = false, children, disabled = false, inList, kind = "outline", ...more }) =>
  h("button", { type: "button", ...more, "aria-busy": busy || undefined,
    className: classes("df-button", `df-${kind}`, inList && "df-small"), disabled: disabled || busy },
  busy && h(Spinner, { small: true }), children);

export const Checkbox = ({ change, checked, label }) =>
  h("label", { className: "df-check" },
    h("input", { checked, onChange: ({ target }) => change(target.checked), type: "checkbox" }), label);

export const Code = ({ children }) => h("code", { className: "df-code" }, children);

// The browser's own modal dialog: it keeps the focus, closes on Escape, and gives the focus back.
export const Dialog = ({ children, close, footer, title }) => {
  const box = useRef(null);
  const id = useId();
  useEffect(() => {
    if (!box.current.open) box.current.showModal();
  }, []);
  return h("dialog", { "aria-labelledby": id, className: "df-dialog", onClose: close, ref: box },
    h("h2", { className: "df-h2", id }, title), children, h("div", { className: "df-row df-end" }, footer));
};

export const Heading = ({ children, level = 2 }) => h(`h${level}`, { className: `df-h${level}` }, children);

export const Input = (more) => h("input", { ...more, className: "df-input" });

// Of `to`, which leads to another page of Airflow, nothing is known here.
export const Link = ({ children, href, onClick, to, ...more }) =>
  to ? h("span", null, children) : h("a", { ...more, className: "df-link", href, onClick }, children);

export const Progress = ({ label, moving, tone, value }) =>
  h("div", { "aria-label": label, "aria-valuemax": 100, "aria-valuemin": 0, "aria-valuenow": Math.round(value * 100),
    className: "df-track", role: "progressbar" },
  h("div", { className: classes("df-range", `df-${tone}`, moving && "df-moving"), style: { width: `${value * 100}%` } }));

export const Select = ({ change, label, options, value }) =>
  h("select", { "aria-label": label, className: "df-input df-select", onChange: ({ target }) => change(target.value), value },
    options.map(([id, words]) => h("option", { key: id, value: id }, words)));

export const Spinner = ({ small }) => h("span", { "aria-hidden": true, className: classes("df-spinner", small && "df-small") });

export const table = { Body: "tbody", Cell: "td", Column: "th", Head: "thead", Root: "table", Row: "tr" };

export const Tabs = ({ children, items, select, value }) => {
  const id = useId();
  const turn = (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const at = items.findIndex((item) => item.id === value);
    const next = items[(at + step + items.length) % items.length];
    select(next.id);
    document.getElementById(`${id}${next.id}`).focus();
  };
  return h("div", null,
    h("div", { className: "df-tabs", onKeyDown: turn, role: "tablist" }, items.map((item) =>
      h("button", { "aria-controls": `${id}panel`, "aria-selected": item.id === value, className: "df-tab",
        id: `${id}${item.id}`, key: item.id, onClick: () => select(item.id), role: "tab",
        tabIndex: item.id === value ? 0 : -1, type: "button" }, item.label))),
    h("div", { "aria-labelledby": `${id}${value}`, className: "df-panel", id: `${id}panel`, role: "tabpanel" }, children));
};

export const Textarea = (more) => h("textarea", { ...more, className: "df-input df-text" });

// The view is named by the address, so that it can be sent to somebody, and Back goes back.
const MOVED = "deltaforge-moved";

export const useQuery = () => {
  const [text, setText] = useState(globalThis.location.search);
  useEffect(() => {
    const look = () => setText(globalThis.location.search);
    const events = ["popstate", MOVED];
    for (const event of events) globalThis.addEventListener(event, look);
    return () => {
      for (const event of events) globalThis.removeEventListener(event, look);
    };
  }, []);
  const set = useCallback((query, { replace = false } = {}) => {
    const words = query.toString();
    globalThis.history[replace ? "replaceState" : "pushState"](null, "", words ? `?${words}` : globalThis.location.pathname);
    globalThis.dispatchEvent(new Event(MOVED));
  }, []);
  return [new URLSearchParams(text), set];
};
