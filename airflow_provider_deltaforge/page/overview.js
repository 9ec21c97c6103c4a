// How one pipeline is, and why.

import { h, Fragment, useState } from "./react.js";
import { Alert, Button, Code, Link, Select } from "./kit.js";
import { Chart } from "./charts.js";
import { pipelinePath, useAnswer, useClient } from "./client.js";
import { ago, bytes, milliseconds, moment, number, position, rate, since } from "./format.js";
import { supervisorOf } from "./owner.js";
import { Confirm } from "./actions.js";
import { Answered, Command, Figure, Grid, Muted, NEEDS_ATTENTION, Pairs, Section, ShowMore, Stack, Status, Words } from "./parts.js";
import { Rewinds } from "./rewinds.js";
import { InitialCopy } from "./snapshots.js";

const HISTORY_EVERY_MS = 10000;
const TABLES_SHOWN = 20;
const RANGES = [["15m", "15 minutes"], ["1h", "1 hour"], ["6h", "6 hours"], ["24h", "a day"]];

const Position = ({ at }) => (at ? h(Code, null, position(at)) : "–");

const doing = ({ name, ops, status }) => {
  const { desired } = ops;
  if (desired === "stopped" && !["stopped", "failed", "lost", "pending"].includes(status)) {
    return `Asked to stop: the driver delivers what it holds, then ends. If it hangs, \`deltaforge stop ${name}\` ends it.`;
  }
  if (desired === "paused" && ["running", "snapshotting"].includes(status)) return "Asked to pause: the driver delivers what it holds, then waits.";
  return desired === "running" && status === "paused" ? "Asked to go on." : null;
};

export const Why = ({ pipeline }) => {
  const { ops, status } = pipeline;
  const underWay = doing(pipeline);
  if (underWay) return h(Alert, null, h(Words, { text: underWay }));
  if (!ops.reason && !ops.advice) return null;
  const tone = status === "blocked" || (ops.reason ?? "").startsWith("degraded") ? "warning" : NEEDS_ATTENTION.has(status) ? "error" : "info";
  const [line, ...more] = (ops.reason ?? "").split("\n");
  const title = line && h(Words, { text: ops.error_class ? `${ops.error_class}: ${line}` : line });
  return h(Alert, { title, tone },
    more.length > 0 && h(Command, { label: "The rest of the reason" }, more.join("\n")),
    ops.advice && h("p", null, h(Words, { text: ops.advice })));
};

const Figures = ({ perSecond, pipeline: { ops } }) =>
  h("div", { className: "df-figures" },
    h(Figure, { label: "Events per second", note: "the last ten seconds", value: rate(perSecond) }),
    h(Figure, { label: "Events", note: `${bytes(ops.bytes)} read`, value: number(ops.events) }),
    h(Figure, { label: "Lag", note: "commit to delivery", value: milliseconds(ops.lag_ms) }),
    h(Figure, { label: "Heartbeat", note: "of its driver", value: since(ops.heartbeat_age_s) }),
    h(Figure, { label: "Dead letters", note: ops.dlq?.max_entries ? `of ${number(ops.dlq.max_entries)} at most` : "set aside", value: number(ops.dlq_entries) }),
    h(Figure, { label: "Restarts", note: `of generation ${ops.generation}`, value: number(ops.restarts) }));

const History = ({ name }) => {
  const [range, setRange] = useState("1h");
  const answer = useAnswer(pipelinePath(name, "history"), { since: range }, HISTORY_EVERY_MS);
  const select = h(Select, { change: setRange, label: "How far back", options: RANGES, value: range });
  return h(Section, { aside: select, title: "History" }, h(Answered, { answer }, ({ points }) => {
    if (!points.some(({ status }) => status)) return h(Muted, null, "No driver has worked in this time.");
    const times = points.map(({ at }) => Date.parse(at));
    const of = (key) => points.map((point) => point[key] ?? null);
    return h("div", { className: "df-charts" },
      h(Chart, { format: rate, series: [{ name: "events", values: of("events_per_s") }], times, title: "Events per second" }),
      h(Chart, { format: milliseconds, series: [{ name: "at the end", values: of("lag_ms") }, { name: "worst", values: of("lag_max_ms") }], times, title: "Lag" }),
      h(Chart, { format: milliseconds, series: [{ name: "half", values: of("latency_p50_ms") }, { name: "95 %", values: of("latency_p95_ms") },
        { name: "99 %", values: of("latency_p99_ms") }], times, title: "Latency, commit to sink" }));
  }));
};

const SINK_DIALOGS = {
  "give-up": ["Give up", "It is not waited for any more, and no log is kept for it. What it lacks is recorded as a gap, and it does not get it later."],
  resume: ["Resume", "It goes on from the pipeline's present position. What it missed stays a gap: copy its tables again if it needs those rows."],
};

const sinkChange = ({ status }) => ({ behind: "give-up", catching_up: "give-up", given_up: "resume" })[status];

const Sinks = ({ pipeline: { name, ops, rights }, refresh }) => {
  const [asking, setAsking] = useState(null);
  const client = useClient();
  const mayOperate = rights.includes("operate");
  const [verb, text] = asking ? SINK_DIALOGS[asking.change] : [];
  return h(Section, { title: "Sinks" }, h(Grid, {
    columns: [{ name: "Sink" }, { name: "Status" }, { name: "Events", right: true }, { name: "Bytes", right: true }, { name: "Retries", right: true },
      { name: "Position", wide: true }, { name: "Durable", right: true }, { name: "" }],
    empty: "No sink has reported yet.",
    label: "Sinks",
    rows: Object.entries(ops.sinks).map(([id, sink]) => ({
      cells: [
        h("span", { className: "df-strong" }, id),
        h("div", { className: "df-bars" }, h("div", null, h(Status, { status: sink.status })),
          sink.reason && h("span", null, h(Words, { text: sink.reason })), sink.lag_ms > 0 && h(Muted, null, `${milliseconds(sink.lag_ms)} behind`)),
        number(sink.events), bytes(sink.bytes), number(sink.retries), h(Position, { at: sink.position }), ago(sink.checkpoint_ms, client.now()),
        mayOperate && sinkChange(sink) && h(Button, { inList: true, onClick: () => setAsking({ change: sinkChange(sink), id }) },
          `${SINK_DIALOGS[sinkChange(sink)][0]}…`),
      ],
      key: id,
    })),
  }),
  asking && h(Confirm, { act: (api) => api.send("POST", pipelinePath(name, "sinks", asking.id, asking.change)),
    close: () => { setAsking(null); refresh(); }, danger: asking.change === "give-up", title: `${verb} sink ${asking.id}?`, verb: `${verb} it` }, h("p", null, text)));
};

const OPERATIONS = ["r", "c", "u", "d"];

const Tables = ({ ops }) => {
  const [all, setAll] = useState(false);
  const client = useClient();
  const sum = (counts) => Object.values(counts).reduce((total, count) => total + count, 0);
  const other = ({ c, d, r, u, ...rest }) => sum(rest);
  const stopped = ops.stopped_tables ?? {};
  const names = [...new Set([...Object.keys(stopped).sort(), ...Object.keys(ops.tables).sort()])];
  return h(Section, { title: "Tables" }, h(Grid, {
    columns: [{ name: "Table" }, { name: "State" }, { name: "Copied rows", right: true }, { name: "Inserts", right: true }, { name: "Updates", right: true },
      { name: "Deletes", right: true }, { name: "Other", right: true }, { name: "All", right: true }],
    empty: "No event has been delivered yet.",
    label: "Tables",
    rows: names.slice(0, all ? undefined : TABLES_SHOWN).map((name) => {
      const counts = ops.tables[name]?.events ?? {};
      const why = stopped[name];
      return {
        cells: [h("span", { className: "df-strong" }, name),
          why ? h("span", null, h("span", { className: "df-bad" }, `stopped ${ago(why.since_ms, client.now())}: `), h(Words, { text: why.reason })) : "followed",
          ...OPERATIONS.map((operation) => number(counts[operation] ?? 0)), number(other(counts)), number(sum(counts))],
        key: name,
      };
    }),
  }), names.length > TABLES_SHOWN && h(ShowMore, { all, count: `${names.length} tables`, setAll }));
};

const Supervisor = ({ pipeline }) => {
  if (!pipeline.supervisor) return supervisorOf(pipeline);
  const { dag_id, map_index, run_id, task_id } = pipeline.supervisor;
  const mapped = map_index >= 0 ? `/mapped/${map_index}` : "";
  const run = `/dags/${dag_id}/runs/${encodeURIComponent(run_id)}/tasks/${task_id}${mapped}`;
  return h("span", null, h(Link, { to: `/dags/${dag_id}` }, dag_id), ", task ", h(Link, { to: run }, task_id));
};

const Driver = ({ pipeline, pipeline: { ops } }) =>
  h(Section, { title: "Driver" }, h(Pairs, { pairs: [
    ["supervised by", h(Supervisor, { pipeline })],
    ["generation", number(ops.generation)],
    ["wanted", ops.desired],
    ["status since", ops.since_ms ? moment(ops.since_ms) : "–"],
    ["source", h(Code, null, ops.source_id || "–")],
    ["position", h(Position, { at: ops.position })],
  ] }));

export const Overview = ({ perSecond, pipeline, refresh }) => {
  const { name, ops, status } = pipeline;
  return h(Stack, null,
    h(Figures, { perSecond, pipeline }),
    ops.snapshot && h(InitialCopy, { copy: ops.snapshot, status }),
    h(History, { name }),
    h(Sinks, { pipeline, refresh }),
    h(Rewinds, { pipeline }),
    h(Tables, { ops }),
    h(Driver, { pipeline }));
};
