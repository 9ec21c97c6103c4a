// Every pipeline of a state store, those that need attention on top.

import { h } from "./react.js";
import { Input, Select } from "./kit.js";
import { age, milliseconds, number, rate } from "./format.js";
import { supervisorOf } from "./owner.js";
import { Bar, Field, Grid, Muted, NEEDS_ATTENTION, Stack, Status, ViewLink, Words } from "./parts.js";
import { useClient } from "./client.js";
import { useView } from "./view.js";

const REASON_SHOWN = 160;

const labelsOf = ({ spec }) => Object.entries(spec?.metadata?.labels ?? {}).map(([key, value]) => `${key}: ${value}`);

const tenantOf = ({ ops }) => ops.tenant;

// Those who need attention come first.
const inOrder = (pipelines) =>
  [...pipelines].sort((left, right) =>
    NEEDS_ATTENTION.has(right.status) - NEEDS_ATTENTION.has(left.status) || left.name.localeCompare(right.name));

const hasText = (pipeline, text) => {
  const { ops, spec } = pipeline;
  const sinks = (spec?.spec?.sinks ?? []).map((sink) => `${sink?.type} ${sink?.config?.id ?? ""}`);
  const words = [pipeline.name, ops.tenant, ops.reason, ops.source_id, spec?.spec?.source?.type, ...labelsOf(pipeline), ...sinks];
  return words.filter(Boolean).join("\n").toLowerCase().includes(text.toLowerCase());
};

const choices = (values) => [...new Set(values.filter(Boolean))].sort();

export const chosen = (pipelines, view) =>
  inOrder(pipelines).filter((pipeline) =>
    [[view.get("status"), [pipeline.status]], [view.get("tenant"), [tenantOf(pipeline)]], [view.get("label"), labelsOf(pipeline)]]
      .every(([wanted, values]) => !wanted || values.includes(wanted)) && hasText(pipeline, view.get("text") ?? ""));

const Filters = ({ pipelines, view }) => {
  const set = (key) => (value) => view.go({ [key]: value }, { replace: true });
  const select = (key, label, any, values) => values.length > 0 && h(Field, { key, label },
    h(Select, { change: set(key), label, options: [["", any], ...values.map((value) => [value, value])], value: view.get(key) ?? "" }));
  return h("div", { className: "df-filters", role: "search" },
    h(Field, { label: "Find" }, h(Input, { onChange: ({ target }) => set("text")(target.value),
      placeholder: "Name, label, sink, reason", type: "search", value: view.get("text") ?? "" })),
    select("status", "Status", "Any status", choices(pipelines.map(({ status }) => status))),
    select("tenant", "Tenant", "Any tenant", choices(pipelines.map(tenantOf))),
    select("label", "Label", "Any label", choices(pipelines.flatMap(labelsOf))));
};

const sinksNotWell = ({ sinks = {} }) =>
  Object.entries(sinks).filter(([, { status }]) => ["blocked", "behind", "catching_up", "failed", "given_up"].includes(status));

const shortened = (reason) => {
  const [line] = reason.split("\n");
  return line.length > REASON_SHOWN ? `${line.slice(0, REASON_SHOWN)}…` : line;
};

const Doing = ({ pipeline }) => {
  const { ops, status } = pipeline;
  const late = sinksNotWell(ops).map(([id, sink]) => `${id} ${sink.status.replaceAll("_", " ")}`);
  const stopped = Object.keys(ops.stopped_tables ?? {}).length;
  const part = ops.snapshot?.chunks ? ops.snapshot.chunks_done / ops.snapshot.chunks : null;
  const words = part !== null && `${Math.floor(part * 100)} %, ${number(ops.snapshot.rows)} rows copied`;
  return h("div", { className: "df-bars" }, h("div", null, h(Status, { status })),
    part !== null && h(Bar, { label: words, moving: true, part, tone: "info" }), part !== null && h(Muted, null, words),
    ops.desired !== "running" && !["paused", "stopped"].includes(status) && h(Muted, null, `wanted: ${ops.desired}`),
    NEEDS_ATTENTION.has(status) && ops.reason && h("span", null, h(Words, { text: shortened(ops.reason) })),
    late.length > 0 && h(Muted, null, `sinks: ${late.join(", ")}`),
    stopped > 0 && h(Muted, null, `${stopped} table${stopped > 1 ? "s" : ""} stopped`));
};

const needy = (pipelines) => pipelines.filter(({ status }) => NEEDS_ATTENTION.has(status)).length;

export const fleetWords = (pipelines) => {
  const count = `${number(pipelines.length)} pipeline${pipelines.length === 1 ? "" : "s"}`;
  const ill = needy(pipelines);
  if (ill) return `${count}, ${ill} ${ill === 1 ? "needs" : "need"} attention`;
  return pipelines.length ? `${count}, all well` : count;
};

// In a DAG's tab all of them have one supervisor.
export const Fleet = ({ isOfDag, pipelines, rateOf }) => {
  const view = useView();
  const client = useClient();
  const shown = chosen(pipelines, view);
  const open = (name) => () => view.go({ pipeline: name, tab: null });
  return h(Stack, null,
    pipelines.length > 1 && h(Filters, { pipelines, view }),
    h(Grid, {
      columns: [{ name: "Pipeline" }, { name: "Status", wide: true }, { name: "For", right: true }, { name: "Events", right: true },
        { name: "Rate", right: true }, { name: "Lag", right: true }, { name: "Dead letters", right: true },
        { name: "Restarts", right: true }, ...(isOfDag ? [] : [{ name: "Supervised by" }])],
      empty: "No pipeline fits the filters.",
      label: "Pipelines",
      rows: shown.map((pipeline) => {
        const { name, ops } = pipeline;
        return {
          cells: [
            h("div", { className: "df-bars" },
              h("span", { className: "df-name" }, h(ViewLink, { href: view.href({ pipeline: name, tab: null }), open: open(name) }, name)),
              h(Muted, null, [tenantOf(pipeline), ...labelsOf(pipeline)].filter(Boolean).join(" · "))),
            h(Doing, { pipeline }), age(ops.since_ms, client.now()) ?? "–", number(ops.events),
            rate(rateOf(name)), milliseconds(ops.lag_ms), number(ops.dlq_entries), number(ops.restarts), ...(isOfDag ? [] : [supervisorOf(pipeline)]),
          ],
          className: "df-open",
          key: name,
          onClick: open(name),
        };
      }),
    }));
};
