// The initial copy, and the copies that were asked for beside the stream.

import { h, Fragment, useState } from "./react.js";
import { Alert, Button, Checkbox, Code, Dialog, Input } from "./kit.js";
import { pipelinePath, useAnswer, useChange, useClient } from "./client.js";
import { ago, bytes, duration, number, plural } from "./format.js";
import { askerOf } from "./owner.js";
import { Answered, Bar, Field, Grid, Muted, Refusal, Row, Section, ShowMore, Stack } from "./parts.js";

const TABLES_SHOWN = 12;

const tableName = ({ database, schema, table }) => `${schema ?? database}.${table}`;

const share = ({ chunks, chunks_done, rows, rows_estimate }) => {
  if (!chunks || chunks_done >= chunks) return 1;
  return rows_estimate ? Math.min(0.99, rows / rows_estimate) : chunks_done / chunks;
};

const copied = ({ bytes: size, chunks, chunks_done, eta_s, rows, rows_estimate }) => {
  const whole = chunks_done < chunks && rows_estimate ? ` of about ${number(rows_estimate)}` : "";
  const rest = chunks_done < chunks && eta_s ? ` · about ${duration(eta_s)} left` : "";
  return `${number(rows)}${whole} rows · ${size ? `${bytes(size)} · ` : ""}${number(chunks_done)} of ${plural(chunks, "chunk")}${rest}`;
};

const limited = ({ limits, rows_per_s: pace }) => [
  ...(pace ? [`${number(pace)} rows/s`] : []),
  ...Object.entries(limits ?? {}).map(([name, value]) => `${name} ${number(value)}`),
].map((words) => `, ${words}`).join("");

// How far the pipeline's own copy is; `status` is the pipeline's.
export const InitialCopy = ({ copy, status }) => {
  const [all, setAll] = useState(false);
  const client = useClient();
  if (!copy) {
    return h(Section, { title: "Initial copy" }, h(Muted, null, status === "starting" || status === "snapshotting"
      ? "It is being planned." : "There was none: its document asks for none, or it has not begun."));
  }
  const copying = status === "snapshotting" && !copy.finished;
  const tables = Object.entries(copy.tables);
  const word = copy.cancelled ? "cancelled" : copy.finished ? "finished" : copying ? `copying${copy.eta_s ? `, about ${duration(copy.eta_s)} left` : ""}` : "not finished";
  return h(Section, { aside: h(Muted, null, `${word}, begun ${ago(copy.started_at_ms, client.now())}`), title: "Initial copy" },
    copy.cancelled && h(Alert, { title: "Cancelled", tone: "warning" }, copy.cancelled),
    h(Muted, null, `${number(copy.rows)} rows, ${bytes(copy.bytes)}, ${number(copy.chunks_done)} of ${plural(copy.chunks, "chunk")}${copying ? limited(copy) : ""}`),
    tables.slice(0, all ? undefined : TABLES_SHOWN).map(([name, counts]) =>
      h("div", { className: "df-bars", key: name },
        h(Row, { apart: true }, h("span", { className: "df-strong" }, name), h(Muted, null, copied(counts))),
        h(Bar, { label: `${name}: ${copied(counts)}`, moving: copying && share(counts) < 1, part: share(counts),
          tone: share(counts) === 1 ? "success" : "info" }))),
    tables.length > TABLES_SHOWN && h(ShowMore, { all, count: plural(tables.length, "table"), setAll }));
};

const what = ({ repairs, tables, where }) => (repairs ? `rows that verification ${repairs} found to differ` : `${tables.length ? tables.join(", ") : "all tables"}${where ? ` where ${where}` : ""}`);

const progressOf = ({ copied: tables, state }) => {
  const sums = Object.values(tables ?? {}).reduce(
    (sum, { chunks = 0, chunks_done = chunks, rows = 0 }) => ({ chunks: sum.chunks + chunks, chunks_done: sum.chunks_done + chunks_done, rows: sum.rows + rows }),
    { chunks: 0, chunks_done: 0, rows: 0 });
  return state === "snapshotting" && sums.chunks ? copied(sums) : number(sums.rows);
};

const Requests = ({ mayOperate, name, refresh, requests }) => {
  const client = useClient();
  const [run, busy, error] = useChange();
  const withdraw = async (id) => {
    await run((api) => api.send("DELETE", pipelinePath(name, "snapshots", id)), id);
    refresh();
  };
  const open = ({ state }) => state === "pending" || state === "snapshotting";
  return h(Fragment, null, h(Refusal, { error }), h(Grid, {
    columns: [{ name: "Request" }, { name: "State" }, { name: "What", wide: true }, { name: "Rows", right: true }, { name: "Asked", right: true }, { name: "By" }, { name: "" }],
    empty: "Nobody has asked for a copy.",
    label: "Snapshot requests",
    rows: [...requests].reverse().map((request) => ({
      cells: [request.id, h("span", null, request.state, request.reason && `: ${request.reason}`), h(Code, null, what(request)), progressOf(request),
        ago(request.requested_at_ms, client.now()), askerOf(request.by),
        mayOperate && open(request) && h(Button, { busy: busy === request.id, inList: true, onClick: () => withdraw(request.id) }, "Withdraw")],
      key: `${request.ticket ?? request.id} ${request.requested_at_ms}`,
    })),
  }));
};

export const Copies = ({ pipeline: { name, rights, spec, status } }) => {
  const [asking, setAsking] = useState(false);
  const answer = useAnswer(pipelinePath(name, "snapshots"));
  const mayOperate = rights.includes("operate");
  return h(Answered, { answer }, ({ initial, requests }) =>
    h(Stack, null, h(InitialCopy, { copy: initial, status }),
      h(Section, { aside: mayOperate && h(Button, { inList: true, onClick: () => setAsking(true) }, "Copy tables…"), title: "Copies beside the stream" },
        h(Requests, { mayOperate, name, refresh: answer.refresh, requests })),
      asking && h(CopyDialog, { close: () => { setAsking(false); answer.refresh(); }, name, source: spec?.spec?.source })));
};

export const CopyDialog = ({ close, name, source }) => {
  const answer = useAnswer(pipelinePath(name, "schemas"), {}, 60000);
  const known = (answer.data ?? []).map(tableName);
  const listed = known.length ? known : [source?.config?.tables ?? []].flat().filter((table) => typeof table === "string");
  const [chosen, setChosen] = useState([]);
  const [where, setWhere] = useState("");
  const [run, busy, error] = useChange();
  const send = async () => {
    const done = await run((client) => client.send("POST", pipelinePath(name, "snapshots"), { tables: chosen, where: where.trim() || null }));
    if (done) close();
  };
  const toggle = (table) => (on) => setChosen(on ? [...chosen, table] : chosen.filter((other) => other !== table));
  const needsOne = where.trim() && chosen.length !== 1;
  return h(Dialog, { close, title: `Copy tables of ${name} again`,
    footer: h(Fragment, null, h(Button, { onClick: close }, "Cancel"),
      h(Button, { busy: busy !== null, disabled: Boolean(needsOne), kind: "solid", onClick: send },
        chosen.length ? `Copy ${plural(chosen.length, "table")}` : "Copy all tables")) },
  h(Stack, null,
    h("p", null, "Rows are read from the source and sent to every sink, beside the stream. Consumers see them as snapshot events (", h(Code, null, "op: r"), ")."),
    h("fieldset", { className: "df-bars" }, h("legend", { className: "df-strong" }, "Tables; none means all"),
      listed.map((table) => h(Checkbox, { change: toggle(table), checked: chosen.includes(table), key: table, label: table }))),
    h(Field, { hint: needsOne ? "A condition needs exactly one table." : "A condition in the source's SQL, for one table; empty copies every row.", label: "Where" },
      h(Input, { onChange: ({ target }) => setWhere(target.value), placeholder: "id BETWEEN 1 AND 1000", spellCheck: false, value: where })),
    h(Refusal, { error })));
};
