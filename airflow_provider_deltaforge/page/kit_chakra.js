// The same components, made of those that Airflow lends: they follow its theme.

import { h } from "./react.js";

const C = globalThis.ChakraUI;
const { Link: RouterLink, useSearchParams } = globalThis.ReactRouterDOM;

const PALETTES = { error: "failed", info: "info", muted: "gray", success: "success", warning: "warning" };
const STATUSES = { error: "error", info: "info", muted: "neutral", success: "success", warning: "warning" };

export const Alert = ({ children, title, tone = "info" }) =>
  h(C.Alert.Root, { alignItems: "flex-start", status: STATUSES[tone] }, h(C.Alert.Indicator, null),
    h(C.Alert.Content, null, title && h(C.Alert.Title, { overflowWrap: "anywhere" }, title),
      h(C.Box, { fontSize: "sm", overflowWrap: "anywhere", w: "full" }, children)));

export const Badge = ({ children, solid, tone }) =>
  h(C.Badge, { colorPalette: PALETTES[tone], variant: solid ? "solid" : "subtle" }, children);

const KINDS = {
  danger: { colorPalette: "danger" }, outline: { variant: "outline" }, plain: { variant: "ghost" }, solid: { colorPalette: "brand" },
};

export const Button = ({ busy = false, children, inList, kind = "outline", ...more }) =>
  h(C.Button, { loading: busy, size: inList ? "xs" : "sm", type: "button", ...KINDS[kind], ...more }, children);

export const Checkbox = ({ change, checked, label }) =>
  h(C.Checkbox.Root, { checked, onCheckedChange: (event) => change(event.checked === true), size: "sm" },
    h(C.Checkbox.HiddenInput, null), h(C.Checkbox.Control, null), h(C.Checkbox.Label, null, label));

export const Code = ({ children }) => h(C.Code, { overflowWrap: "anywhere", size: "sm", whiteSpace: "pre-wrap" }, children);

export const Dialog = ({ children, close, footer, title }) =>
  h(C.Dialog.Root, { lazyMount: true, onOpenChange: ({ open }) => !open && close(), open: true, scrollBehavior: "inside", size: "lg" },
    h(C.Portal, null, h(C.Dialog.Backdrop, null),
      h(C.Dialog.Positioner, null, h(C.Dialog.Content, null,
        h(C.Dialog.Header, null, h(C.Dialog.Title, { overflowWrap: "anywhere" }, title)),
        h(C.Dialog.Body, null, children), h(C.Dialog.Footer, { flexWrap: "wrap" }, footer)))));

export const Heading = ({ children, level = 2 }) =>
  h(C.Heading, { as: `h${level}`, overflowWrap: "anywhere", size: { 1: "xl", 2: "lg", 3: "sm" }[level] }, children);

export const Input = (more) => h(C.Input, { size: "sm", ...more });

export const Link = ({ children, to, ...more }) =>
  to ? h(C.Link, { asChild: true, color: "fg.info" }, h(RouterLink, { to }, children)) : h(C.Link, { color: "fg.info", ...more }, children);

export const Progress = ({ label, moving = false, tone, value }) =>
  h(C.Progress.Root, { "aria-label": label, animated: moving, colorPalette: PALETTES[tone], size: "sm", striped: moving,
    value: value * 100, w: "full" }, h(C.Progress.Track, null, h(C.Progress.Range, null)));

export const Select = ({ change, label, options, value }) =>
  h(C.NativeSelect.Root, { size: "sm", w: "auto" },
    h(C.NativeSelect.Field, { "aria-label": label, onChange: ({ target }) => change(target.value), value },
      options.map(([id, words]) => h("option", { key: id, value: id }, words))),
    h(C.NativeSelect.Indicator, null));

export const Spinner = ({ small }) => h(C.Spinner, { size: small ? "xs" : "md" });

export const table = {
  Body: C.Table.Body, Cell: C.Table.Cell, Column: C.Table.ColumnHeader, Head: C.Table.Header,
  Root: (more) => h(C.Table.Root, { size: "sm", variant: "line", ...more }),
  Row: (more) => h(C.Table.Row, { bg: "transparent", ...more }),
};

export const Tabs = ({ children, items, select, value }) =>
  h(C.Tabs.Root, { onValueChange: (event) => select(event.value), size: "sm", value },
    h(C.Tabs.List, { flexWrap: "wrap" }, items.map(({ id, label }) => h(C.Tabs.Trigger, { key: id, value: id }, label))),
    h(C.Tabs.Content, { value }, children));

export const Textarea = (more) => h(C.Textarea, { fontFamily: "mono", fontSize: "xs", ...more });

export const useQuery = () => useSearchParams();
