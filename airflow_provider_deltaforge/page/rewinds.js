// The log, delivered again: what was requested, how far it is, and asking for it.

import { h, Fragment, useState } from "./react.js";
import { Alert, Button, Code, Dialog, Input } from "./kit.js";
import { pipelinePath, useAnswer, useChange, useClient, useServer } from "./client.js";
import { ago, milliseconds, position } from "./format.js";
import { askerOf } from "./owner.js";
import { Answered, Field, Grid, Muted, Refusal, Row, Section, Stack, Words } from "./parts.js";

const EVERYTHING = "every sink";

const progressOf = ({ lag_ms: lag, position: at, rewind, rewind_asked: asked, rewind_refused: refused }) => {
  if (asked) return "It begins within seconds, or when the pipeline starts.";
  const refusal = refused && h(Words, { text: `Refused for ${askerOf(refused.by)}: ${refused.reason}` });
  if (rewind.state !== "running") return h(Fragment, null, rewind.reason && h(Words, { text: rewind.reason }), refusal);
  return h("div", { className: "df-bars" }, h("span", null, "at ", h(Code, null, position(at ?? rewind.to))),
    lag > 0 && h(Muted, null, `${milliseconds(lag)} behind`), refusal);
};

const Requests = ({ sinks }) => {
  const client = useClient();
  return h(Grid, {
    columns: [{ name: "Sink" }, { name: "State" }, { name: "From", wide: true }, { name: "Tables" }, { name: "How far" }, { name: "Asked", right: true }, { name: "By" }],
    empty: "Nobody has asked for it.",
    label: "Rewinds",
    rows: sinks.filter(({ rewind, rewind_asked: asked }) => rewind || asked).map((sink) => {
      const { by, tables, to, ...shown } = sink.rewind_asked ?? sink.rewind;
      return {
        cells: [h("span", { className: "df-strong" }, sink.sink), sink.rewind_asked ? "requested" : shown.state, h(Code, null, position(to)),
          tables.length ? h(Code, null, tables.join(", ")) : "all", progressOf(sink), ago(shown.at_ms ?? shown.begun_ms, client.now()), askerOf(by)],
        key: sink.sink,
      };
    }),
  });
};

const RewindDialog = ({ close, name, sink }) => {
  const [to, setTo] = useState("");
  const [tables, setTables] = useState("");
  const [planned, setPlanned] = useState(null);
  const [run, busy, error] = useChange();
  const path = sink === EVERYTHING ? pipelinePath(name, "rewind") : pipelinePath(name, "sinks", sink, "rewind");
  const asked = { tables: tables.split(",").map((table) => table.trim()).filter(Boolean), to: to.trim() };
  const change = (set) => ({ target }) => {
    set(target.value);
    setPlanned(null);
  };
  const look = () => run(async (client) => setPlanned(await client.send("POST", path, { ...asked, dry_run: true })));
  const send = async () => (await run((client) => client.send("POST", path, { ...asked, confirm: name }))) && close();
  return h(Dialog, { close, title: `Deliver the log to ${sink} again`,
    footer: h(Fragment, null, h(Button, { onClick: close }, "Cancel"),
      planned ? h(Button, { busy: busy !== null, kind: "danger", onClick: send }, "Deliver it again")
        : h(Button, { busy: busy !== null, disabled: !asked.to, kind: "solid", onClick: look }, "Find the place")) },
  h(Stack, null,
    h("p", null, "Every change behind a time or place comes again, with the same event ids and in order, beside the stream. The pipeline does not wait for a sink that gets the log again."),
    h(Field, { hint: "A time (2026-11-23T10:00:00Z, in UTC without a zone), how long ago (2h ago), or a place of the source's log.", label: "From" },
      h(Input, { autoComplete: "off", onChange: change(setTo), placeholder: "2h ago", spellCheck: false, value: to })),
    h(Field, { hint: "Names or patterns, with commas between; empty means all.", label: "Tables" },
      h(Input, { autoComplete: "off", onChange: change(setTables), placeholder: "shop.orders", spellCheck: false, value: tables })),
    planned && h(Alert, null, h(Words, { text: planned.summary })),
    h(Refusal, { error })));
};

export const Rewinds = ({ pipeline: { name, ops, rights } }) => {
  const [asking, setAsking] = useState(null);
  const answer = useAnswer(pipelinePath(name, "sinks"));
  const { asks_servers } = useServer();
  const mayOperate = rights.includes("operate");
  const ids = Object.keys(ops.sinks);
  const choices = ids.length > 1 ? [...ids, EVERYTHING] : ids;
  const button = (sink) => h(Button, { inList: true, key: sink, onClick: () => setAsking(sink) }, `To ${sink}…`);
  return h(Section, { aside: mayOperate && asks_servers && h(Row, null, choices.map(button)), title: "Deliver the log again" },
    mayOperate && !asks_servers && h(Muted, null, h(Words, { text: "A task of `DeltaForgeRewindOperator` does it, and `deltaforge rewind` where drivers run." })),
    h(Answered, { answer }, (sinks) => h(Requests, { sinks })),
    asking && h(RewindDialog, { close: () => { setAsking(null); answer.refresh(); }, name, sink: asking }));
};
