// The driver's log and the document: read when they are opened.

import { address, useAnswer } from "./asking.js";
import { Command, Section } from "./parts.js";

const { createElement: h, useEffect, useRef, useState } = globalThis.React;
const { Box, Button, Text } = globalThis.ChakraUI;

const LOG_EVERY_MS = 4000;
const DOCUMENT_EVERY_MS = 60000;
const LINES = 200;

const colour = (line) => {
  if (/\b(ERROR|CRITICAL|FATAL|Traceback|Exception in)\b/.test(line)) return "fg.error";
  return /\bWARN(ING)?\b/.test(line) ? "fg.warning" : undefined;
};

const useOpened = (open) => {
  const [opened, setOpened] = useState(open);
  const button = h(Button, { "aria-expanded": opened, onClick: () => setOpened(!opened), size: "xs",
    variant: "outline" }, opened ? "Hide" : "Show");
  return [opened, button];
};

const Lines = ({ lines }) => {
  const box = useRef(null);
  const atEnd = useRef(true);
  useEffect(() => {
    if (atEnd.current && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [lines]);
  const note = ({ currentTarget: one }) => {
    atEnd.current = one.scrollHeight - one.scrollTop - one.clientHeight < 24;
  };
  return h(
    Box,
    { "aria-label": "The end of the driver's log", as: "pre", bg: "bg.muted", borderRadius: "md",
      fontFamily: "mono", fontSize: "xs", maxH: "24rem", onScroll: note, overflow: "auto", p: 3,
      ref: box, role: "log", tabIndex: 0 },
    lines.map((line, index) => h(Box, { as: "span", color: colour(line), display: "block", key: index }, line || " ")),
  );
};

export const Log = ({ connId, name, open }) => {
  const [opened, button] = useOpened(open);
  const path = `pipelines/${encodeURIComponent(name)}/log`;
  const { data, error } = useAnswer(opened ? address(path, { conn_id: connId, lines: LINES }) : null, LOG_EVERY_MS);
  const body = error
    ? h(Text, { fontSize: "sm" }, error.detail)
    : data && (data.missing ? h(Text, { fontSize: "sm" }, data.missing) : h(Lines, { lines: data.lines }));
  return h(Section, { aside: button, title: "Driver's log" }, opened && body);
};

export const Source = ({ connId, name }) => {
  const [opened, button] = useOpened(false);
  const path = `pipelines/${encodeURIComponent(name)}/document`;
  const { data, error } = useAnswer(opened ? address(path, { conn_id: connId }) : null, DOCUMENT_EVERY_MS);
  const body = error ? h(Text, { fontSize: "sm" }, error.detail) : data && h(Command, null, data.document);
  return h(Section, { aside: button, title: "Document" }, opened && body);
};
