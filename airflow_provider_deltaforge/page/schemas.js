// The tables' schemas as registered, version by version.

import { h, Fragment, useState } from "./react.js";
import { Button, Code, Select } from "./kit.js";
import { pipelinePath, useAnswer, useChange, useServer } from "./client.js";
import { moment, number, position } from "./format.js";
import { Answered, Grid, Muted, Pairs, Refusal, Row, Section, Stack, ViewLink } from "./parts.js";
import { useView } from "./view.js";

const SLOWLY_MS = 15000;

const qualifierOf = ({ database, schema }) => schema ?? database;

const nameOf = (table) => `${qualifierOf(table)}.${table.table}`;

const Fingerprint = ({ text }) => h("span", { title: text }, h(Code, null, `${text.replace(/^sha256:/, "").slice(0, 12)}…`));

const describe = (column) =>
  [column.column_type ?? column.type, column.nullable ? null : "NOT NULL", column.is_primary_key ? "primary key" : null,
    column.default_value === null || column.default_value === undefined ? null : `default ${column.default_value}`, column.extra || null]
    .filter(Boolean).join(", ");

// What differs between two lists of columns: `[{ name, before, after }]`, null where there is none.
export const differences = (before, after) => {
  const [old, present] = [before, after].map((columns) => new Map(columns.map((column) => [column.name, describe(column)])));
  return [...new Set([...present.keys(), ...old.keys()])]
    .map((name) => ({ after: present.get(name) ?? null, before: old.get(name) ?? null, name }))
    .filter((column) => column.before !== column.after);
};

const Diff = ({ from, path, to }) => {
  const before = useAnswer(path, { version: from }, SLOWLY_MS);
  const after = useAnswer(path, { version: to }, SLOWLY_MS);
  return h(Answered, { answer: before }, (old) => h(Answered, { answer: after }, (present) =>
    h(Grid, {
      columns: [{ name: "Column" }, { name: `Version ${from}` }, { name: `Version ${to}` }],
      empty: "The columns are the same.",
      label: `Differences between version ${from} and ${to}`,
      rows: differences(old.columns, present.columns).map((column) => ({
        cells: [h("span", { className: "df-strong" }, column.name),
          column.before === null ? h(Muted, null, "absent") : h("span", { className: "df-bad" }, column.before),
          column.after === null ? h(Muted, null, "absent") : h("span", { className: "df-added" }, column.after)],
        key: column.name,
      })),
    })));
};

const Versions = ({ path, versions }) => {
  const numbers = [...new Set(versions.map(({ version }) => version))].sort((a, b) => b - a);
  const [from, setFrom] = useState(null);
  const [to, setTo] = useState(null);
  const options = numbers.map((number_) => [String(number_), `Version ${number_}`]);
  const [left, right] = [from ?? String(numbers[1] ?? numbers[0]), to ?? String(numbers[0])];
  return h(Fragment, null,
    h(Grid, {
      columns: [{ name: "Version", right: true }, { name: "Sequence", right: true }, { name: "Columns", right: true }, { name: "In force since" }, { name: "Position" }, { name: "Fingerprint" }],
      empty: "No version is known.",
      label: "Versions",
      rows: [...versions].reverse().map((version) => ({
        cells: [number(version.version), number(version.sequence), number(version.column_count), moment(Date.parse(version.registered_at)),
          h(Code, null, position(version.position)), h(Fingerprint, { text: version.fingerprint })],
        key: `${version.version} ${version.sequence}`,
      })),
    }),
    numbers.length > 1 && h(Fragment, null,
      h(Row, null, h("span", { className: "df-strong" }, "Compare"), h(Select, { change: setFrom, label: "From version", options, value: left }),
        "with", h(Select, { change: setTo, label: "To version", options, value: right })),
      h(Diff, { from: left, path, to: right })));
};

const Table = ({ mayReload, name, table }) => {
  const path = pipelinePath(name, "schemas", qualifierOf(table), table.table);
  const schema = useAnswer(path, {}, SLOWLY_MS);
  const versions = useAnswer(`${path}/versions`, {}, SLOWLY_MS);
  const [run, busy, error] = useChange();
  const reload = async () => {
    await run((client) => client.send("POST", `${path}/reload`));
    schema.refresh();
    versions.refresh();
  };
  return h(Section, { aside: mayReload && h(Button, { busy: busy !== null, inList: true, onClick: reload }, "Read the catalog again"), title: nameOf(table) },
    h(Refusal, { error }),
    h(Answered, { answer: schema }, (detail) => h(Fragment, null,
      h(Pairs, { pairs: [["version", number(detail.registry_version)], ["fingerprint", h(Code, null, detail.fingerprint)],
        ["primary key", detail.primary_key.length ? detail.primary_key.join(", ") : "none"]] }),
      h(Grid, { columns: [{ name: "#", right: true }, { name: "Column" }, { name: "Type" }], empty: "It has no columns.", label: "Columns",
        rows: detail.columns.map((column) => ({ cells: [number(column.ordinal_position), h("span", { className: "df-strong" }, column.name), describe(column)], key: column.name })) }))),
    h(Answered, { answer: versions }, (entries) => h(Versions, { key: path, path, versions: entries })));
};

export const Schemas = ({ pipeline: { name, rights } }) => {
  const { asks_servers } = useServer();
  const view = useView();
  const answer = useAnswer(pipelinePath(name, "schemas"), {}, SLOWLY_MS);
  return h(Answered, { answer }, (tables) => {
    const selected = tables.find((table) => nameOf(table) === view.get("table")) ?? (tables.length === 1 ? tables[0] : null);
    const open = (table) => () => view.go({ table: nameOf(table) }, { replace: true });
    return h(Stack, null,
      h(Grid, {
        columns: [{ name: "Table" }, { name: "Columns", right: true }, { name: "Primary key" }, { name: "Version", right: true }, { name: "Fingerprint" }],
        empty: "No table is registered yet. They are once a driver has started.",
        label: "Registered tables",
        rows: tables.map((table) => ({
          cells: [h(ViewLink, { href: view.href({ table: nameOf(table) }), open: open(table) }, nameOf(table)), number(table.column_count),
            table.primary_key.join(", ") || "none", number(table.registry_version), h(Fingerprint, { text: table.fingerprint })],
          className: "df-open", key: nameOf(table), onClick: open(table),
        })),
      }),
      selected && h(Table, { key: nameOf(selected), mayReload: asks_servers && rights.includes("operate"), name, table: selected }));
  });
};
