// The page *DeltaForge* and the tab of the same name on a DAG. No build step: Airflow lends its
// React, its router and its components, and the browser loads these files as they are.

import { address, useAnswer, useRates } from "./asking.js";
import { Details } from "./details.js";
import { NoPipelines, Trouble } from "./first_steps.js";
import { age, milliseconds, number, plural, rate, since } from "./format.js";
import { Bar, Grid, NEEDS_ATTENTION, Stack, Status } from "./parts.js";

const { createElement: h, useState } = globalThis.React;
const { Box, Button, Heading, HStack, Input, NativeSelect, Spinner, Text } = globalThis.ChakraUI;
const { useSearchParams } = globalThis.ReactRouterDOM;

const FILTER_FROM = 8;
const DEFAULT = "deltaforge_default";
const CONNECTIONS_EVERY_MS = 60000;

// Who needs attention comes first.
const inOrder = (pipelines) =>
  [...pipelines].sort((left, right) =>
    NEEDS_ATTENTION.has(right.status) - NEEDS_ATTENTION.has(left.status) || left.name.localeCompare(right.name));

const Copying = ({ snapshot }) => {
  if (!snapshot || snapshot.finished || !snapshot.chunks) return null;
  const part = snapshot.chunks_done / snapshot.chunks;
  const words = `${Math.floor(part * 100)} %, ${number(snapshot.rows)} rows`;
  return h(Box, { mt: 1, w: "9rem" }, h(Bar, { label: `Snapshot: ${words}`, part, status: "info", striped: true }),
    h(Text, { color: "fg.muted", fontSize: "xs" }, words));
};

const List = ({ answer, flowOf, select, selected }) =>
  h(Grid, {
    columns: [{ name: "Pipeline" }, { name: "Status" }, { name: "For", right: true }, { name: "Wanted" },
      { name: "Events", right: true }, { name: "Rate", right: true }, { name: "Lag", right: true },
      { name: "Heartbeat", right: true }, { name: "Restarts", right: true }, { name: "Generation", right: true },
      { name: "Supervised by" }],
    empty: "No pipeline of that name.",
    label: "Pipelines",
    rows: answer.pipelines.map((pipeline) => ({
      "aria-selected": pipeline.name === selected,
      bg: pipeline.name === selected ? "bg.emphasized" : "transparent",
      cells: [
        h(Button, { "aria-pressed": pipeline.name === selected, fontWeight: "semibold", height: "auto",
          onClick: () => select(pipeline.name), p: 0, size: "sm", variant: "plain" }, pipeline.name),
        h(Box, null, h(Status, { status: pipeline.status }), h(Copying, { snapshot: pipeline.snapshot })),
        age(pipeline.since_ms, answer.now_ms) ?? "–", pipeline.desired, number(pipeline.events), rate(flowOf(pipeline.name).now),
        milliseconds(pipeline.lag_ms), since(pipeline.heartbeat_age_s), number(pipeline.restarts), number(pipeline.generation),
        pipeline.supervisor ? pipeline.supervisor.dag_id : "–",
      ],
      cursor: "pointer",
      key: pipeline.name,
      onClick: () => select(pipeline.name),
    })),
  });

const Store = ({ choose, connId, connections }) => {
  if (connections.length < 2) return h(Text, { color: "fg.muted", fontSize: "sm" }, `connection ${connId}`);
  return h(
    NativeSelect.Root,
    { size: "sm", width: "auto" },
    h(NativeSelect.Field, { "aria-label": "Connection of the state store",
      onChange: ({ target }) => choose(target.value), value: connId },
    connections.map((id) => h("option", { key: id, value: id }, id))),
    h(NativeSelect.Indicator, null),
  );
};

const health = (pipelines) => {
  const needy = pipelines.filter(({ status }) => NEEDS_ATTENTION.has(status)).length;
  if (needy) return `, ${needy} ${needy === 1 ? "needs" : "need"} attention`;
  return pipelines.length ? ", all well" : "";
};

const Title = ({ children, dagId, error, pipelines }) =>
  h(
    HStack,
    { justify: "space-between", wrap: "wrap" },
    h(
      HStack,
      { align: "baseline", gap: 3 },
      !dagId && h(Heading, { as: "h1", size: "xl" }, "DeltaForge"),
      pipelines && h(Text, { color: "fg.muted" }, plural(pipelines.length, "pipeline"),
        error ? ", not up to date" : health(pipelines)),
    ),
    children,
  );

const Selected = ({ connId, flowOf, name }) => {
  const path = `pipelines/${encodeURIComponent(name)}`;
  const { data, error, refresh } = useAnswer(address(path, { conn_id: connId }));
  if (!data) return error ? h(Trouble, { connId, error }) : h(Spinner, null);
  const gone = error?.code === "unknown_pipeline";
  return h(Stack, null, error && h(Trouble, { connId, error, stale: !gone }),
    !gone && h(Details, { answer: data, connId, flow: flowOf(name), refresh }));
};

const Pipelines = ({ connId, dagId, put, query, store }) => {
  const [filter, setFilter] = useState("");
  const { data, error } = useAnswer(address("pipelines", { conn_id: connId, dag_id: dagId }));
  const flowOf = useRates(data);
  const select = (name) => put({ pipeline: name });
  if (!data) {
    return h(Stack, null, h(Title, { dagId }, store),
      error ? h(Trouble, { connId, error }) : h(Spinner, { "aria-label": "Loading" }));
  }
  const pipelines = inOrder(data.pipelines);
  const shown = { ...data, pipelines: pipelines.filter(({ name }) => name.includes(filter)) };
  const selected = query.get("pipeline") ?? pipelines[0]?.name;
  const listed = pipelines.length > (dagId ? 1 : 0);
  return h(
    Stack,
    { gap: 5 },
    h(Title, { dagId, error, pipelines }, store),
    error && h(Trouble, { connId, error, stale: true }),
    pipelines.length >= FILTER_FROM && h(Input, { "aria-label": "Filter by name", maxW: "20rem",
      onChange: ({ target }) => setFilter(target.value), placeholder: "Filter by name", size: "sm", value: filter }),
    listed && h(List, { answer: shown, flowOf, select, selected }),
    pipelines.length === 0 && h(NoPipelines, { connId, dagId }),
    selected && h(Selected, { connId, flowOf, key: selected, name: selected }),
  );
};

const Page = ({ dagId }) => {
  const [query, setQuery] = useSearchParams();
  const known = useAnswer(address("connections"), CONNECTIONS_EVERY_MS);
  const connections = known.data?.connections ?? [];
  const connId = query.get("conn_id") ?? connections[0] ?? DEFAULT;
  const put = (changes) =>
    setQuery((old) => new URLSearchParams({ ...Object.fromEntries(old), ...changes }), { replace: true });
  // A pipeline of one store is unknown in another.
  const choose = (id) => setQuery({ conn_id: id });
  const store = h(Store, { choose, connId, connections });
  const ready = known.data || known.error || query.get("conn_id");
  return h(
    Box,
    { h: "full", overflowY: "auto", p: 4 },
    ready
      ? h(Pipelines, { connId, dagId, key: connId, put, query, store })
      : h(Spinner, { "aria-label": "Loading" }),
  );
};

// Airflow looks for the name of the react app, and for this one after it has loaded the module.
globalThis.AirflowPlugin = Page;
globalThis.DeltaForge = Page;
