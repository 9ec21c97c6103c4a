// The page *DeltaForge* and the tab of the same name on a DAG. No build step: Airflow lends its
// React, its router and its components, and the browser loads these files as they are.

import { address, useAnswer, useRates } from "./asking.js";
import { Details } from "./details.js";
import { NoPipelines, Trouble } from "./first_steps.js";
import { age, duration, milliseconds, number, plural, rate } from "./format.js";
import { Bar, Grid, NEEDS_SOMEBODY, Stack, Status } from "./parts.js";

const { createElement: h, useState } = globalThis.React;
const { Box, Button, Heading, HStack, Input, Spinner, Text } = globalThis.ChakraUI;
const { useSearchParams } = globalThis.ReactRouterDOM;

const FILTER_FROM = 8;

// Who needs somebody comes first.
const inOrder = (pipelines) =>
  [...pipelines].sort((left, right) =>
    NEEDS_SOMEBODY.has(right.status) - NEEDS_SOMEBODY.has(left.status) || left.name.localeCompare(right.name));

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
    rows: answer.pipelines.map((one) => ({
      "aria-selected": one.name === selected,
      bg: one.name === selected ? "bg.emphasized" : "transparent",
      cells: [
        h(Button, { "aria-pressed": one.name === selected, fontWeight: "semibold", height: "auto",
          onClick: () => select(one.name), p: 0, size: "sm", variant: "plain" }, one.name),
        h(Box, null, h(Status, { status: one.status }), h(Copying, { snapshot: one.snapshot })),
        age(one.since_ms, answer.now_ms) ?? "–", one.desired, number(one.events), rate(flowOf(one.name).now),
        milliseconds(one.lag_ms), duration(one.heartbeat_age_s), number(one.restarts), number(one.generation),
        one.supervisor ? one.supervisor.dag_id : "–",
      ],
      cursor: "pointer",
      key: one.name,
      onClick: () => select(one.name),
    })),
  });

const Title = ({ answer, dagId, error }) => {
  const needy = answer?.pipelines.filter(({ status }) => NEEDS_SOMEBODY.has(status)).length ?? 0;
  const words = answer && plural(answer.pipelines.length, "pipeline");
  return h(
    HStack,
    { justify: "space-between", wrap: "wrap" },
    h(
      HStack,
      { align: "baseline", gap: 3 },
      !dagId && h(Heading, { as: "h1", size: "xl" }, "DeltaForge"),
      words && h(Text, { color: "fg.muted" }, words,
        needy ? `, ${needy} ${needy === 1 ? "needs" : "need"} somebody` : answer.pipelines.length ? ", all well" : ""),
    ),
    answer && h(Text, { color: "fg.muted", fontSize: "sm" },
      `connection ${answer.conn_id}`, error ? ", not up to date" : ""),
  );
};

const Selected = ({ connId, flowOf, name }) => {
  const path = `pipelines/${encodeURIComponent(name)}`;
  const { data, error, refresh } = useAnswer(address(path, { conn_id: connId }));
  if (!data) return error ? h(Trouble, { connId, error }) : h(Spinner, null);
  const gone = error?.code === "unknown_pipeline";
  return h(Stack, null, error && h(Trouble, { connId, error, stale: !gone }),
    !gone && h(Details, { answer: data, connId, flow: flowOf(name), refresh }));
};

const Page = ({ dagId }) => {
  const [query, setQuery] = useSearchParams();
  const [filter, setFilter] = useState("");
  const connId = query.get("conn_id") ?? "deltaforge_default";
  const { data, error } = useAnswer(address("pipelines", { conn_id: connId, dag_id: dagId }));
  const flowOf = useRates(data);
  const select = (name) =>
    setQuery((old) => {
      const next = new URLSearchParams(old);
      next.set("pipeline", name);
      return next;
    }, { replace: true });
  if (!data) {
    return h(Box, { p: 4 }, error ? h(Trouble, { connId, error }) : h(Spinner, { "aria-label": "Loading" }));
  }
  const pipelines = inOrder(data.pipelines);
  const shown = { ...data, pipelines: pipelines.filter(({ name }) => name.includes(filter)) };
  const asked = query.get("pipeline");
  const selected = asked ?? pipelines[0]?.name;
  return h(
    Box,
    { h: "full", overflowY: "auto", p: 4 },
    h(
      Stack,
      { gap: 5 },
      h(Title, { answer: data, dagId, error }),
      error && h(Trouble, { connId, error, stale: true }),
      pipelines.length >= FILTER_FROM && h(Input, { "aria-label": "Filter by name", maxW: "20rem",
        onChange: ({ target }) => setFilter(target.value), placeholder: "Filter by name", size: "sm", value: filter }),
      pipelines.length > 0 && h(List, { answer: shown, flowOf, select, selected }),
      pipelines.length === 0 && h(NoPipelines, { connId, dagId }),
      selected && h(Selected, { connId, flowOf, key: `${connId} ${selected}`, name: selected }),
    ),
  );
};

// Airflow looks for the name of the react app, and for this one after it has loaded the module.
globalThis.AirflowPlugin = Page;
globalThis.DeltaForge = Page;
