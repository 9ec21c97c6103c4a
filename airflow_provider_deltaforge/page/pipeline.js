// One pipeline: what it does, and everything about it in tabs.

import { h, Fragment } from "./react.js";
import { Heading, Tabs } from "./kit.js";
import { pipelinePath, useAnswer, useClient } from "./client.js";
import { age, moment, number } from "./format.js";
import { Actions } from "./actions.js";
import { Copies } from "./snapshots.js";
import { DeadLetters } from "./dead_letters.js";
import { Document, Log } from "./log.js";
import { Overview, Why } from "./overview.js";
import { Answered, Muted, Row, Stack, Status, ViewLink } from "./parts.js";
import { Schemas } from "./schemas.js";
import { Structure } from "./structure.js";
import { Verification } from "./verification.js";
import { useView } from "./view.js";

const TABS = [
  { id: "overview", label: "Overview", shows: Overview },
  { id: "copies", label: "Copies", shows: Copies },
  { id: "verification", label: "Verification", right: "read_rows", shows: Verification },
  { id: "schemas", label: "Schemas", shows: Schemas },
  { id: "structure", label: "Structure and drift", shows: Structure },
  { id: "dead-letters", label: "Dead letters", right: "read_rows", shows: DeadLetters },
  { id: "log", label: "Log", right: "read_log", shows: Log },
  { id: "document", label: "Document", right: "read_document", shows: Document },
];

const Head = ({ leave, pipeline, refresh }) => {
  const client = useClient();
  const { name, ops, status } = pipeline;
  return h(Row, { apart: true },
    h(Row, null, h(Heading, { level: 1 }, name), h(Status, { status }),
      ops.since_ms && h(Muted, { title: moment(ops.since_ms) }, `for ${age(ops.since_ms, client.now())}`),
      (ops.desired === "running" ? ["failed", "lost", "stopped"].includes(status) : ops.desired !== status) && h(Muted, null, `wanted: ${ops.desired}`), ops.tenant && h(Muted, null, `tenant ${ops.tenant}`)),
    h(Actions, { leave, pipeline, refresh }));
};

const Shown = ({ pipeline, rateOf, refresh }) => {
  const view = useView();
  const tabs = TABS.filter(({ right }) => !right || pipeline.rights.includes(right));
  const open = tabs.find(({ id }) => id === view.get("tab")) ?? tabs[0];
  const leave = () => view.go({ pipeline: null, tab: null, table: null, sensed: null });
  const label = (tab) => (tab.id === "dead-letters" && pipeline.ops.dlq_entries ? `${tab.label} (${number(pipeline.ops.dlq_entries)})` : tab.label);
  return h(Stack, null,
    h(Head, { leave, pipeline, refresh }),
    h(Why, { pipeline }),
    h(Tabs, { items: tabs.map((tab) => ({ id: tab.id, label: label(tab) })), select: (tab) => view.go({ tab }, { replace: true }), value: open.id },
      h(open.shows, { key: `${pipeline.name} ${open.id}`, perSecond: rateOf(pipeline.name), pipeline, refresh })));
};

export const Pipeline = ({ isSingle, name, rateOf }) => {
  const view = useView();
  const answer = useAnswer(pipelinePath(name));
  const all = { pipeline: null, tab: null, table: null, sensed: null };
  return h(Stack, null,
    !isSingle && h("nav", { "aria-label": "Back" }, h(ViewLink, { href: view.href(all), open: () => view.go(all) }, "← All pipelines")),
    answer.error?.code === "PIPELINE_NOT_FOUND"
      ? h(Answered, { answer: { data: null, error: answer.error } }, () => null)
      : h(Answered, { answer }, (pipeline) => h(Fragment, null, h(Shown, { pipeline, rateOf, refresh: answer.refresh }))));
};
