// What schema sensing has learned of JSON, and where rows drift from what their tables declare.

import { h, Fragment } from "./react.js";
import { Alert, Badge, Code } from "./kit.js";
import { pipelinePath, useAnswer } from "./client.js";
import { moment, number } from "./format.js";
import { Answered, Command, Grid, Muted, Section, Stack, ViewLink, Words } from "./parts.js";
import { useView } from "./view.js";

const SLOWLY_MS = 10000;

const percent = (share) => `${(share * 100).toFixed(share > 0 && share < 0.1 ? 2 : 1)} %`;

const time = (text) => (text ? moment(Date.parse(text)) : "–");

// An answer about something that the document may leave off: then the API says which key turns it on.
const Switched = ({ answer, children, what }) =>
  answer.error?.code === "SENSING_OFF"
    ? h(Alert, { title: `${what} is off`, tone: "info" }, h("p", null, h(Words, { text: answer.error.message })))
    : h(Answered, { answer }, children);

const typesOf = (types) => (Array.isArray(types) ? types.join(" | ") : String(types ?? "–"));

const Fields = ({ fields }) =>
  h(Grid, {
    columns: [{ name: "Field" }, { name: "Types" }, { name: "May be" }, { name: "Inside" }],
    empty: "No field was seen yet.",
    label: "Fields",
    rows: fields.map((field) => ({
      cells: [h("span", { className: "df-strong" }, field.name), h(Code, null, typesOf(field.types)),
        [field.nullable && "null", field.optional && "missing"].filter(Boolean).join(", ") || "–",
        [field.array_element_types && `elements ${typesOf(field.array_element_types)}`, field.nested_field_count && `${field.nested_field_count} fields`,
          field.has_dynamic_fields && "a map", field.enum_values && `one of ${field.enum_values.join(", ")}`].filter(Boolean).join("; ") || "–"],
      key: field.name,
    })),
  });

const Changes = ({ changes }) =>
  changes.length > 0 && h(Grid, {
    columns: [{ name: "Change", right: true }, { name: "When" }, { name: "New fields" }, { name: "New types" }],
    label: "Changes of the structure",
    rows: [...changes].reverse().map((change) => ({
      cells: [number(change.sequence), time(change.at), change.added.join(", ") || "–", change.changed.join(", ") || "–"], key: String(change.sequence) })),
  });

const Sensed = ({ name, table }) => {
  const path = pipelinePath(name, "sensing", "schemas", table);
  const schema = useAnswer(path, {}, SLOWLY_MS);
  const exported = useAnswer(`${path}/json-schema`, {}, SLOWLY_MS);
  return h(Section, { title: table },
    h(Answered, { answer: schema }, ({ evolutions, fields }) => h(Fragment, null, h(Fields, { fields }), h(Changes, { changes: evolutions }))),
    h("details", null, h("summary", null, "As JSON Schema"),
      h(Switched, { answer: exported, what: "The export" }, (text) => h(Command, { label: "JSON Schema" }, JSON.stringify(text, null, 2)))));
};

const Sensing = ({ name }) => {
  const view = useView();
  const schemas = useAnswer(pipelinePath(name, "sensing", "schemas"), {}, SLOWLY_MS);
  const known = schemas.data !== null;
  const stats = useAnswer(known ? pipelinePath(name, "sensing", "stats") : null, {}, SLOWLY_MS);
  const open = (table) => () => view.go({ sensed: table }, { replace: true });
  return h(Fragment, null,
    h(Section, { aside: stats.data && h(Muted, null, `${percent(stats.data.hit_rate)} of structures were known`), title: "Sensed structure" },
      h(Switched, { answer: schemas, what: "Schema sensing" }, (tables) => h(Grid, {
        columns: [{ name: "Table, or JSON column" }, { name: "Events", right: true }, { name: "Changes", right: true }, { name: "Learning" },
          { name: "Last seen" }, { name: "Fingerprint" }],
        empty: "Nothing was sensed yet.",
        label: "Sensed tables",
        rows: tables.map((table) => ({
          cells: [h(ViewLink, { href: view.href({ sensed: table.table }), open: open(table.table) }, table.table), number(table.event_count),
            number(table.sequence), table.stabilized ? "done" : "goes on", time(table.last_seen), h(Code, null, table.fingerprint)],
          className: "df-open", key: table.table, onClick: open(table.table),
        })),
      }))),
    known && schemas.data.some(({ table }) => table === view.get("sensed")) && h(Sensed, { key: view.get("sensed"), name, table: view.get("sensed") }));
};

const detailsOf = (record) =>
  [record.samples.join(" · "), record.new_fields?.length && `new: ${record.new_fields.join(", ")}`,
    record.type_changes?.length && `changed: ${record.type_changes.join(", ")}`].filter(Boolean).join("; ");

const Records = ({ table }) =>
  h(Fragment, null, h("div", { className: "df-strong" }, table.table), h(Grid, {
    columns: [{ name: "Column" }, { name: "Kind" }, { name: "Expected" }, { name: "Observed" }, { name: "Count", right: true },
      { name: "Share", right: true }, { name: "Last seen" }, { name: "Examples, shortened and masked" }],
    label: `Drift of ${table.table}`,
    rows: table.records.map((record) => ({
      cells: [h("span", { className: "df-strong" }, record.column), record.drift_type.replaceAll("_", " "), h(Code, null, record.expected),
        h(Code, null, record.observed), number(record.count), percent(record.share), time(record.last_seen), h(Code, null, detailsOf(record) || "–")],
      key: `${record.column} ${record.drift_type}`,
    })),
  }));

const Drift = ({ name }) => {
  const answer = useAnswer(pipelinePath(name, "drift"), {}, SLOWLY_MS);
  return h(Section, { title: "Drift" }, h(Switched, { answer, what: "Drift detection" }, (tables) => h(Stack, null,
    h(Grid, {
      columns: [{ name: "Table" }, { name: "State" }, { name: "Events looked at", right: true }, { name: "With drift", right: true }],
      empty: "No table was looked at yet.",
      label: "Drift by table",
      rows: tables.map((table) => ({
        cells: [h("span", { className: "df-strong" }, table.table), h(Badge, { tone: table.has_drift ? "warning" : "success" }, table.has_drift ? "drifts" : "as declared"),
          number(table.events_analyzed), number(table.events_with_drift)],
        key: table.table,
      })),
    }),
    tables.filter(({ records }) => records.length).map((table) => h(Records, { key: table.table, table })))));
};

export const Structure = ({ pipeline: { name } }) => h(Stack, null, h(Sensing, { name }), h(Drift, { name }));
