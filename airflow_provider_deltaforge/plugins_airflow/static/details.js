// Everything about one pipeline.

import { age, ago, bytes, duration, milliseconds, moment, number, plural, position, rate, since } from "./format.js";
import { Log, Source } from "./reading.js";
import { Bar, Figure, Grid, NEEDS_ATTENTION, Notice, Pairs, Section, Sparkline, Stack, Status, Words } from "./parts.js";
import { Actions } from "./actions.js";

const { createElement: h, useState } = globalThis.React;
const { Box, Button, Code, Heading, HStack, Link, Text } = globalThis.ChakraUI;
const { Link: RouterLink } = globalThis.ReactRouterDOM;

const TABLES_SHOWN = 15;

const To = ({ children, to }) =>
  h(Link, { asChild: true, color: "fg.info" }, h(RouterLink, { to }, children));

const Supervisor = ({ task }) => {
  if (!task) return h(Text, { as: "span" }, "nobody in Airflow");
  const { dag_id, map_index, run_id, task_id } = task;
  const mapped = map_index >= 0 ? `/mapped/${map_index}` : "";
  const run = `/dags/${dag_id}/runs/${encodeURIComponent(run_id)}/tasks/${task_id}${mapped}`;
  return h("span", null, h(To, { to: `/dags/${dag_id}` }, dag_id), ", task ", h(To, { to: run }, task_id));
};

const doing = ({ desired, name, status }) => {
  if (desired === "stopped" && !["stopped", "failed", "lost", "pending"].includes(status)) {
    return `Asked to stop: the driver delivers what it holds, then ends. If it hangs, \`deltaforge stop ${name}\` ends it.`;
  }
  if (desired === "paused" && ["running", "snapshotting"].includes(status)) {
    return "Asked to pause: the driver delivers what it holds, then waits.";
  }
  return desired === "running" && status === "paused" ? "Asked to go on." : null;
};

const Why = ({ pipeline }) => {
  const { advice, error_class, reason, status } = pipeline;
  const underWay = doing(pipeline);
  if (underWay) return h(Notice, null, h(Words, { text: underWay }));
  if (!reason && !advice) return null;
  const bad = status === "blocked" ? "warning" : NEEDS_ATTENTION.has(status) ? "error" : "info";
  return h(
    Notice,
    { status: bad, title: reason && (error_class ? `${error_class}: ${reason}` : reason) },
    advice && h(Words, { text: advice }),
  );
};

const Figures = ({ flow, pipeline }) =>
  h(
    HStack,
    { align: "stretch", gap: 3, wrap: "wrap" },
    h(Figure, { label: "Events per second", value: rate(flow.now) },
      h(Sparkline, { label: "Events per second, the last minutes", values: flow.steps })),
    h(Figure, { label: "Events", note: `${bytes(pipeline.bytes)} read`, value: number(pipeline.events) }),
    h(Figure, { label: "Lag", note: "commit to delivery", value: milliseconds(pipeline.lag_ms) }),
    h(Figure, { label: "Heartbeat", note: "of its driver", value: since(pipeline.heartbeat_age_s) }),
    h(Figure, { label: "Restarts", note: `of generation ${pipeline.generation}`, value: number(pipeline.restarts) }),
  );

const share = ({ chunks, chunks_done, rows, rows_estimate }) => {
  if (!chunks || chunks_done >= chunks) return 1;
  return rows_estimate ? Math.min(0.99, rows / rows_estimate) : chunks_done / chunks;
};

const copied = ({ chunks, chunks_done, rows, rows_estimate }) => {
  const whole = chunks_done < chunks && rows_estimate ? ` of about ${number(rows_estimate)}` : "";
  return `${number(rows)}${whole} rows · ${number(chunks_done)} of ${plural(chunks, "chunk")}`;
};

const left = (snapshot, part, nowMs) => {
  const seconds = (nowMs - snapshot.started_at_ms) / 1000;
  return part > 0.02 && part < 1 ? `, about ${duration((seconds * (1 - part)) / part)} left` : "";
};

const asked = ({ tables, where }) =>
  `${tables.length ? tables.join(", ") : "all tables"}${where ? ` where ${where}` : ""}`;

const Requests = ({ nowMs, requests, results }) => {
  const waiting = requests.map((request) => ({
    ...request, at: request.requested_at_ms, state: request.cancelled ? "withdrawn" : "waiting" }));
  const served = results.map((result) => ({ ...result, ...result.wish, at: result.finished_at_ms }));
  if (waiting.length + served.length === 0) return null;
  return h(Grid, {
    columns: [{ name: "Request" }, { name: "State" }, { name: "What" }, { name: "Rows", right: true },
      { name: "When", right: true }],
    label: "Snapshot requests",
    rows: [...waiting, ...served].map((request) => ({
      cells: [request.id, h("span", null, request.state, request.reason && `: ${request.reason}`),
        h(Code, { size: "sm" }, asked(request)), number(request.rows), ago(request.at, nowMs)],
      key: `${request.id} ${request.at} ${request.state}`,
    })),
  });
};

const Snapshot = ({ nowMs, requests = [], results = [], snapshot, status, title = "Snapshot" }) => {
  const [all, setAll] = useState(false);
  if (!snapshot && requests.length + results.length === 0) return null;
  const copying = status === "snapshotting" && !snapshot?.finished;
  const tables = Object.entries(snapshot?.tables ?? {});
  const part = snapshot?.chunks ? snapshot.chunks_done / snapshot.chunks : 1;
  const word = !snapshot ? "asked for" : snapshot.cancelled ? "cancelled" : snapshot.finished
    ? "finished" : copying ? `copying${left(snapshot, part, nowMs)}` : "not finished";
  const colour = snapshot?.cancelled ? "gray" : snapshot?.finished ? "success" : "info";
  return h(
    Section,
    { aside: h(Text, { color: "fg.muted", fontSize: "sm" }, word,
      snapshot && `, begun ${ago(snapshot.started_at_ms, nowMs)}`), title },
    h(
      Stack,
      { gap: 3 },
      snapshot?.cancelled && h(Notice, { status: "warning", title: "Cancelled" }, snapshot.cancelled),
      tables.slice(0, all ? undefined : TABLES_SHOWN).map(([name, counts]) =>
        h(
          Box,
          { key: name },
          h(
            HStack,
            { fontSize: "sm", justify: "space-between", mb: 1, wrap: "wrap" },
            h(Text, { fontWeight: "medium" }, name),
            h(Text, { color: "fg.muted", fontVariantNumeric: "tabular-nums" }, copied(counts)),
          ),
          h(Bar, { label: `${name}: ${copied(counts)}`, part: share(counts), status: share(counts) === 1 && copying ? "success" : colour,
            striped: copying && share(counts) < 1 }),
        )),
      tables.length > TABLES_SHOWN && h(Button, { alignSelf: "start", onClick: () => setAll(!all),
        size: "xs", variant: "outline" }, all ? "Show fewer" : `Show all ${tables.length} tables`),
      h(Requests, { nowMs, requests, results }),
    ),
  );
};

const Sinks = ({ nowMs, sinks }) =>
  h(
    Section,
    { title: "Sinks" },
    h(Grid, {
      columns: [{ name: "Sink" }, { name: "Status" }, { name: "Events", right: true },
        { name: "Bytes", right: true }, { name: "Retries", right: true }, { name: "Position" },
        { name: "Durable", right: true }],
      empty: "No sink has reported yet.",
      label: "Sinks",
      rows: Object.entries(sinks).map(([id, sink]) => ({
        cells: [
          h(Text, { fontWeight: "medium" }, id),
          h("div", null, h(Status, { size: "sm", status: sink.status }),
            sink.reason && h(Text, { fontSize: "xs" }, sink.reason)),
          number(sink.events), bytes(sink.bytes), number(sink.retries),
          h(Code, { overflowWrap: "anywhere", size: "sm", variant: "plain" }, position(sink.position)),
          ago(sink.checkpoint_ms, nowMs),
        ],
        key: id,
      })),
    }),
  );

const OPERATIONS = ["r", "c", "u", "d"];

const Tables = ({ tables }) => {
  const sum = (counts) => Object.values(counts).reduce((total, count) => total + count, 0);
  const other = ({ c, d, r, u, ...rest }) => sum(rest);
  return h(
    Section,
    { title: "Tables" },
    h(Grid, {
      columns: [{ name: "Table" }, { name: "Snapshot rows", right: true }, { name: "Inserts", right: true },
        { name: "Updates", right: true }, { name: "Deletes", right: true },
        { name: "Other", right: true }, { name: "All", right: true }],
      empty: "No event has been delivered yet.",
      label: "Tables",
      rows: Object.entries(tables).sort().map(([name, counts]) => ({
        cells: [h(Text, { fontWeight: "medium" }, name),
          ...OPERATIONS.map((operation) => number(counts[operation] ?? 0)), number(other(counts)),
          number(sum(counts))],
        key: name,
      })),
    }),
  );
};

const Driver = ({ nowMs, pipeline }) => {
  const { driver, owner, position: reached, source_id, supervisor } = pipeline;
  const pairs = [
    ["supervised by", h(Supervisor, { task: supervisor })],
    ["owner token", h(Code, { size: "sm" }, owner ?? "none")],
    ["source", h(Code, { size: "sm" }, source_id)],
    ["position", h(Code, { size: "sm" }, position(reached))],
  ];
  if (driver) {
    pairs.push(
      ["driver", h("span", null, h(Code, { size: "sm" }, driver.name), ` (${driver.job}, ${driver.script})`)],
      ["place", `${driver.backend} on ${driver.host}, process ${driver.pid}`],
      ["submitted", `${moment(driver.submitted_at_ms)}, ${ago(driver.submitted_at_ms, nowMs)}`],
      ...Object.entries(driver.links).map(([name, place]) => [name,
        /^https?:/.test(place) ? h(Link, { color: "fg.info", href: place }, place) : h(Code, { size: "sm" }, place)]),
    );
  }
  return h(Section, { title: "Driver" }, h(Pairs, { pairs }));
};

export const Details = ({ answer, connId, flow, refresh }) => {
  const { now_ms: nowMs, pipeline } = answer;
  const { name, since_ms, status } = pipeline;
  return h(
    Stack,
    null,
    h(
      HStack,
      { justify: "space-between", wrap: "wrap" },
      h(
        HStack,
        { gap: 3, wrap: "wrap" },
        h(Heading, { as: "h2", size: "lg" }, name),
        h(Status, { size: "lg", status }),
        since_ms && h(Text, { color: "fg.muted", title: moment(since_ms) }, `for ${age(since_ms, nowMs)}`),
        h(Text, { color: "fg.muted" }, `wanted: ${pipeline.desired}`),
      ),
      h(Actions, { connId, key: name, pipeline, refresh }),
    ),
    h(Why, { pipeline }),
    h(Figures, { flow, pipeline }),
    h(Snapshot, { key: `${name} snapshot`, nowMs, snapshot: pipeline.snapshot, status }),
    h(Snapshot, { key: `${name} copy`, nowMs, requests: pipeline.requests, results: pipeline.results,
      snapshot: pipeline.copy, status, title: "Copies" }),
    h(Sinks, { nowMs, sinks: pipeline.sinks }),
    h(Tables, { tables: pipeline.tables }),
    h(Driver, { nowMs, pipeline }),
    h(Log, { connId, key: `${name} log`, name, open: status === "failed" || status === "lost" }),
    h(Source, { connId, key: `${name} document`, name }),
  );
};
