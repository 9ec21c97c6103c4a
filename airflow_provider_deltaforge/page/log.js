// The end of the driver's log, and the document.

import { h, useEffect, useRef, useState } from "./react.js";
import { Button } from "./kit.js";
import { pipelinePath, useAnswer, useServer } from "./client.js";
import { Change } from "./create.js";
import { Answered, Command, Row, Stack } from "./parts.js";

const EVERY_MS = 3000;
const LINES = 300;

const colour = (line) => {
  if (/\b(ERROR|CRITICAL|FATAL|Traceback|Exception in)\b|"level": ?"(error|critical)"/i.test(line)) return "df-bad";
  return /\bWARN(ING)?\b|"level": ?"warning"/i.test(line) ? "df-doubtful" : undefined;
};

const Lines = ({ lines }) => {
  const box = useRef(null);
  const atEnd = useRef(true);
  useEffect(() => {
    if (atEnd.current && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [lines]);
  const note = ({ currentTarget: pre }) => {
    atEnd.current = pre.scrollHeight - pre.scrollTop - pre.clientHeight < 24;
  };
  return h("pre", { "aria-label": "The end of the driver's log", className: "df-pre df-log", onScroll: note, ref: box, role: "log", tabIndex: 0 },
    lines.map((line, index) => h("span", { className: colour(line), key: index }, line || " ")));
};

export const Log = ({ pipeline: { name } }) =>
  h(Answered, { answer: useAnswer(pipelinePath(name, "log"), { lines: LINES }, EVERY_MS) },
    ({ lines, missing }) => (missing ? h("p", { className: "df-muted" }, missing) : h(Lines, { lines })));

export const Document = ({ pipeline: { name, rights, spec }, refresh }) => {
  const [changing, setChanging] = useState(false);
  const { starts_drivers } = useServer();
  const close = () => {
    setChanging(false);
    refresh();
  };
  return h(Stack, null,
    starts_drivers && rights.includes("admin") && h(Row, null, h(Button, { onClick: () => setChanging(true) }, "Change…")),
    changing && h(Change, { close, name }),
    spec && Object.keys(spec).length
      ? h(Command, { label: "The document" }, JSON.stringify(spec, null, 2))
      : h("p", { className: "df-muted" }, "You may not read this document, or none is kept."));
};
